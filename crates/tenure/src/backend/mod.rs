//! What backends are made of, as opposed to what programs use.

pub mod group_queue;
