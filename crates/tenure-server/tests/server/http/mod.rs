//! The HTTP front door, asked by a real client over TCP.

mod client;
mod docs;
mod guarded;
mod handing;
mod leading;
mod leases;
mod objects;
mod ops;
mod place;
mod refusals;
mod unheard;
mod watching;

/// Runs tests over a store in memory and over one in SQLite.
macro_rules! over_both {
    ($($test:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::http::place::Place::memory().await).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(crate::http::place::Place::sqlite().await).await;
            })+
        }
    };
}
pub(crate) use over_both;
