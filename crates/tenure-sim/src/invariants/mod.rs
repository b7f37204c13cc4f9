//! The guarantees, each as a few pure functions over what is true and what is believed.

pub mod asking;
pub mod attended;
pub mod deadline;
pub mod early;
pub mod exclusive;
pub mod fence;
pub mod gate;
pub mod line;
pub mod loss;
pub mod patience;
pub mod reaping;
pub mod tokens;
