//! One suite of behaviours that every Tenure store passes.
//!
//! The contract is in [`tenure::store`]; this crate is its executable form. A backend's tests run it
//! through [`harness`], the command line runs it on a user's store as `tenure store check URL`. Each
//! behaviour is chosen by what the store declares in its capabilities, works on a store that others
//! use at the same time, and deletes what it created.
//!
//! [`crash`] goes further: it kills processes in the middle of their commits and looks at what they
//! left behind. [`holders`] kills and freezes processes that hold leases.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use std::sync::Arc;
//! use tenure::store::memory::MemoryStore;
//! use tenure_conformance::{Outcome, Subject, behaviours, run_one};
//!
//! let store = MemoryStore::new().into_store();
//! let subject = Subject::new(Arc::new(move || {
//!     let store = store.clone();
//!     Box::pin(async move { Ok(store) })
//! }));
//! let report = run_one(&subject, &behaviours()[0]).await;
//! assert_eq!(report.outcome, Outcome::Passed);
//! # }
//! ```

#[macro_use]
mod failure;
mod behaviours;
mod context;
mod counting;
pub mod crash;
mod disguise;
#[cfg(feature = "harness")]
pub mod harness;
mod helpers;
pub mod holders;
mod linearize;
mod process;
mod recorder;
mod run;
mod subject;
mod together;
mod user_table;
pub mod worker;

pub use behaviours::{behaviours, sql_behaviours};
pub use failure::{Failure, OrFail};
pub use run::{BEHAVIOUR_TIMEOUT, Outcome, Report, Summary, run_all, run_one, run_one_with_sql};
pub use subject::{Behaviour, Needs, Opener, Subject, WorkerCommand};
pub use user_table::{SharedTable, Then, UserTable};
