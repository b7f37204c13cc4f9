//! **Who holds what, until when?** Tenure answers that on the store you already run.
//!
//! This crate holds the contracts and the logic, no database and no network:
//!
//! - [`store`]: versioned objects with compare-and-swap, atomic commits over several objects, time
//!   to live, and a watch that misses nothing. [`store::Store`] is what you program against.
//! - [`store::memory`]: a backend for tests. The others live in crates of their own.
//! - [`backend`]: what backends are made of; programs that use a store need nothing from it.
//! - [`lease`]: a scope held by one owner until a deadline, with a fencing token; waiting in line,
//!   slots, election, reading and writing.
//! - [`gate`]: runs a set of loops only while a lease is held.
//! - [`clock`] and [`random`]: the only places that reach for the machine's time and randomness.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure::Result<()> {
//! use tenure::{Key, store::{Put, WriteCondition, memory::MemoryStore}};
//!
//! let store = MemoryStore::new().into_store();
//! let key = Key::new("order", "1001");
//!
//! let first = store.put_if(Put::new(key.clone(), "new"), WriteCondition::MustCreate).await?;
//! assert_eq!(first.version, 1);
//!
//! // Two people read version 1; the second to write is told, instead of clobbering the first.
//! let on_v1 = WriteCondition::MatchResourceVersion(1);
//! store.put_if(Put::new(key.clone(), "paid"), on_v1).await?;
//! let late = store.put_if(Put::new(key.clone(), "cancelled"), on_v1).await;
//! assert!(late.unwrap_err().is_conflict());
//! # Ok(())
//! # }
//! ```

pub mod backend;
pub mod clock;
mod error;
#[cfg(not(feature = "flaws"))]
mod flaws;
#[cfg(feature = "flaws")]
pub mod flaws;
pub mod gate;
pub mod lease;
mod limits;
mod object;
pub mod random;
pub mod store;

pub use error::{Advice, Current, Error, Result};
pub use limits::Limits;
pub use object::{Key, Labels, Object};
