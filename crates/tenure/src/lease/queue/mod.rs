//! The wait queue: who waits for a lease, in the order they came, and who is woken when it ends.
//!
//! [`queues::WaitQueues`] keeps one [`queue::WaitQueue`] for each thing that callers of this process wait
//! for. [`task`] listens to the store on their behalf. A waiting caller holds a [`entry::QueueEntry`] and
//! sleeps on its [`wakeup::Wakeup`].

#[cfg(test)]
mod blind_tests;
#[cfg(test)]
mod crowd_tests;
pub(crate) mod entry;
pub(crate) mod list;
pub(crate) mod queue;
pub(crate) mod queues;
pub(crate) mod task;
pub(crate) mod wakeup;
