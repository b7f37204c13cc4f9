//! What the store does on a disk that is looked at, filled up, crashed and cut off from power.

mod crash;
mod full;
mod group;
mod recover;
mod slot;
mod store;
