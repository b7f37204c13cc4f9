//! How a commit gets into the database.
//!
//! The `committer` takes all commits that wait and runs them as one group. If it knows the rows they
//! are about, the group takes one exchange with the server (`quick`, sent by `in_flight`). Else it takes
//! two (`transaction`): lock and read, then write what `decide` decided. A commit that carries the
//! caller's own SQL ([`sql`]) has a transaction of its own (`user_sql`).

pub(crate) mod affected;
pub(crate) mod apply;
pub(crate) mod committer;
pub(crate) mod in_flight;
pub(crate) mod known;
pub(crate) mod overlay;
pub(crate) mod pace;
pub(crate) mod quick;
pub(crate) mod sql;
pub(crate) mod transaction;
pub(crate) mod user_sql;
