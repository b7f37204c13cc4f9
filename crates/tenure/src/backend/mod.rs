//! What backends are made of. Programs that use a store need nothing from here; see [`crate::store`].
//!
//! A backend implements [`Backend`]. Embedded and SQL backends take the decision about a commit with
//! [`decide`], so that no two of them disagree, and all of them tell watchers through a [`Feed`].

mod bounded;
mod closing;
mod contract;
pub mod decide;
mod feed;
pub mod group_queue;
pub mod home;
pub mod hosttime;
mod labels;
pub mod local;
mod progress;
pub mod wake;
mod writers;

pub(crate) use bounded::bounded;
pub(crate) use closing::Closing;
pub use contract::Backend;
pub use feed::{Feed, FeedLimits, History};
pub use labels::labels_of_json;
pub use progress::Progress;
pub use writers::{WRITER_LEVEL, check_writer};
