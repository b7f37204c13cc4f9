//! A seeded simulation of leases: many coordinators on one memory store, under paused time, in a
//! world where everything goes wrong that can.
//!
//! From one seed follow the processes, their clocks, what they do and what befalls them: lost, late
//! and repeated messages, outages, processes that freeze, die and come back, wall clocks that jump.
//! After every step, and with every commit the store applies, an observer who sees everything checks
//! the guarantees G1 to G10 of `docs/guarantees.md`. The same seed gives the same history, line by
//! line.
//!
//! ```sh
//! cargo run --release -p tenure-sim -- --seeds 0..20000
//! cargo run --release -p tenure-sim -- --seed 4711 --verbose
//! cargo run --release -p tenure-sim -- --flaw CountsFromReply --seeds 0..100
//! ```

mod asking;
pub mod belief;
pub mod chaos;
pub mod clock;
mod describe;
pub mod dice;
pub mod flaws;
mod gated;
pub mod history;
mod holding;
pub mod invariants;
pub mod network;
pub mod observer;
pub mod plan;
pub mod process;
mod reaping;
pub mod report;
pub mod run;
pub mod server;
pub mod truth;
mod varied;
mod workload;
pub mod world;

pub use history::{Guarantee, Violation};
pub use run::{Outcome, check, run};
pub use world::Settings;
