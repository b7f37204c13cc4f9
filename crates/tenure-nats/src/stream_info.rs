//! What the leader of the bucket says about it: its settings, its last sequence, its clock, and the
//! subjects it holds.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use async_nats::jetstream::stream::Config;
use serde::Deserialize;
use serde_json::json;
use tenure::{Error, Result};

use crate::BACKEND;
use crate::connection::Connection;
use crate::server_time;
use crate::stored::ApiError;

/// There is no such stream.
pub(crate) const NO_STREAM: u64 = 10059;

#[derive(Debug, Deserialize)]
pub(crate) struct InfoReply {
    pub(crate) error: Option<ApiError>,
    pub(crate) config: Option<Config>,
    state: Option<State>,
    cluster: Option<Cluster>,
    #[serde(default)]
    created: String,
    ts: Option<String>,
    #[serde(default)]
    total: usize,
}

#[derive(Debug, Deserialize)]
struct Cluster {
    leader: Option<String>,
    #[serde(default)]
    replicas: Vec<Replica>,
}

#[derive(Debug, Deserialize)]
struct Replica {
    name: String,
}

#[derive(Debug, Deserialize)]
struct State {
    last_seq: u64,
    last_ts: Option<String>,
    #[serde(default)]
    subjects: HashMap<String, u64>,
}

/// The bucket at one instant.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) config: Config,
    pub(crate) last_sequence: u64,
    /// When the last message was stored, by the server's clock.
    pub(crate) last_ns: Option<i128>,
    /// When it was made.
    pub(crate) created: String,
    /// The names of the servers that keep it, where it is said: a server by itself does not.
    pub(crate) keepers: Vec<String>,
}

impl Connection {
    /// Asks for the bucket's settings and last sequence; `None` if there is no bucket.
    pub(crate) async fn info(&self) -> Result<Option<Info>> {
        let reply = self.info_reply(&json!({})).await?;
        if reply.error.as_ref().is_some_and(|error| error.err_code == NO_STREAM) {
            return Ok(None);
        }
        let (created, keepers) = (reply.created.clone(), reply.keepers());
        self.clustered.store(reply.cluster.is_some(), Ordering::Relaxed);
        let (config, state, _) = reply.whole()?;
        self.replicas.store(config.num_replicas, Ordering::Relaxed);
        let last_ns = state.last_ts.as_deref().and_then(server_time::parse);
        Ok(Some(Info { config, last_sequence: state.last_seq, last_ns, created, keepers }))
    }

    /// The bucket's last sequence.
    pub(crate) async fn last_sequence(&self) -> Result<u64> {
        let info = self.info().await?;
        info.map(|info| info.last_sequence).ok_or_else(|| self.gone())
    }

    /// Every subject that a filter matches, with the last sequence before they were looked up.
    pub(crate) async fn subjects_of(&self, filter: &str) -> Result<(Vec<String>, u64)> {
        let (mut all, mut last_sequence) = (Vec::new(), None);
        loop {
            let question = json!({ "subjects_filter": filter, "offset": all.len() });
            let reply = self.info_reply(&question).await?;
            if reply.error.as_ref().is_some_and(|error| error.err_code == NO_STREAM) {
                return Err(self.gone());
            }
            let (_, state, total) = reply.whole()?;
            let first = *last_sequence.get_or_insert(state.last_seq);
            let before = all.len();
            all.extend(state.subjects.into_keys());
            if all.len() >= total || all.len() == before {
                return Ok((all, first));
            }
        }
    }

    async fn info_reply(&self, question: &serde_json::Value) -> Result<InfoReply> {
        let asked = self.time.uptime();
        let reply: InfoReply = self.read("STREAM.INFO", question).await?;
        if let Some(now) = reply.ts.as_deref().and_then(server_time::parse) {
            self.time.learn(asked, now);
        }
        Ok(reply)
    }

    pub(crate) fn gone(&self) -> Error {
        let bucket = self.subjects.bucket();
        Error::Refused {
            backend: BACKEND,
            reason: format!("bucket {bucket} was deleted under this program; restart it"),
        }
    }
}

impl InfoReply {
    fn keepers(&self) -> Vec<String> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let followers = cluster.replicas.iter().map(|replica| replica.name.clone());
        cluster.leader.iter().cloned().chain(followers).collect()
    }

    fn whole(self) -> Result<(Config, State, usize)> {
        if let Some(error) = self.error {
            return Err(Error::unavailable(BACKEND, error.description));
        }
        match (self.config, self.state) {
            (Some(config), Some(state)) => Ok((config, state, self.total)),
            _ => Err(Error::unavailable(BACKEND, "the server's answer about the bucket is empty")),
        }
    }
}
