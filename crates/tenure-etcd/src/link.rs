//! One connection to one server: single calls, streams, and keep-alives.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures::Stream;
use prost::Message;

use crate::error::Fault;
use crate::grpc::{Answers, Wire};
use crate::keeper::{Keeper, Renewed};
use tenure::backend::home::Home;

/// Streams that carry keep-alives. A server works through each of them one by one, and one that is
/// not the leader asks the leader for every single one.
const KEEPERS: usize = 4;

/// A connection. It may break; whoever notices tells [`crate::endpoints::Endpoints`].
pub(crate) struct Link {
    /// Which of the servers.
    pub(crate) server: usize,
    /// Somebody is finding out whether it still answers.
    pub(crate) suspected: AtomicBool,
    wire: Wire,
    keepers: Vec<Keeper>,
}

impl Link {
    pub(crate) fn new(server: usize, wire: Wire, home: &Arc<Home>) -> Self {
        let keepers =
            (0..KEEPERS).map(|_| Keeper::new(wire.clone(), Arc::downgrade(home))).collect();
        Self { server, suspected: AtomicBool::new(false), wire, keepers }
    }

    /// One question, one answer.
    pub(crate) async fn call<Q, R>(&self, path: &'static str, question: Q) -> Result<R, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.wire.call(path, question).await
    }

    /// A stream in each direction.
    pub(crate) async fn stream<Q, R>(
        &self,
        path: &'static str,
        questions: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Answers<R>, Fault>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.wire.stream(path, questions).await
    }

    /// Starts the life of an etcd lease anew.
    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<Renewed, Fault> {
        let keeper = lease.unsigned_abs() as usize % self.keepers.len();
        self.keepers[keeper].keep_alive(lease).await
    }
}
