//! What all parts of the store share.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::future::join_all;
use tenure::{Error, Result};

use crate::BACKEND;
use crate::cache::Cache;
use crate::endpoints::{Budget, Endpoints, Watched};
use crate::error::Fault;
use crate::keeper::Renewed;
use crate::keys::Keys;
use crate::leases::Leases;
use crate::link::Link;
use crate::plan::{put, unchanged};
use crate::snapshot::check_level;
use crate::wire::{
    MemberListResponse, Nothing, RangeRequest, RangeResponse, TxnRequest, TxnResponse, path,
};
use tenure::backend::WRITER_LEVEL;
use tenure::backend::home::Home;

/// How often raising the writer level may find that somebody else has changed it.
const RAISES: u32 = 10;

pub(crate) struct Shared {
    pub(crate) keys: Keys,
    pub(crate) endpoints: Arc<Endpoints>,
    /// The same for whoever asks on the runtime that opened the store, and lives there.
    pub(crate) near: Near,
    /// A connection of their own for watches, so that what nobody reads holds up no renewal.
    pub(crate) watching: Arc<Endpoints>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) cache: Cache,
    /// etcd's revision of the key with the writer level; 0 while there is none.
    pub(crate) writer: AtomicI64,
}

/// A connection on the runtime that opened the store, for as long as that runs.
pub(crate) struct Near {
    pub(crate) home: Arc<Home>,
    pub(crate) endpoints: Arc<Endpoints>,
}

impl Shared {
    /// What a commit made here and now goes over. Whoever asks on the runtime that opened the store is
    /// proof that it runs, and saves two changes of threads; everything else, renewals above all, is
    /// asked on a thread of our own, which goes on while that runtime is busy or blocked.
    pub(crate) fn nearest(&self) -> &Arc<Endpoints> {
        if self.near.home.is_here() { &self.near.endpoints } else { &self.endpoints }
    }

    /// Refuses to go on if the store demands a newer program, and has it demand at least this one's level.
    pub(crate) async fn check_level(&self) -> Result<()> {
        let budget = self.endpoints.budget();
        for _ in 0..RAISES {
            let key = self.keys.writer();
            let question = RangeRequest { key, range_end: vec![], limit: 1, count_only: false };
            let answer: RangeResponse = self.endpoints.read(path::RANGE, question, budget).await?;
            let found = answer.kvs.first();
            let level = found.map_or(Ok(0), check_level)?;
            let modified = found.map_or(0, |found| found.mod_revision);
            self.writer.store(modified, Ordering::Release);
            if level >= WRITER_LEVEL || self.raise_level(modified, budget).await? {
                return Ok(());
            }
        }
        Err(Error::unavailable(BACKEND, "others change the writer level all the time"))
    }

    /// Whether the level was raised, or need not be; not if it has changed meanwhile.
    async fn raise_level(&self, modified: i64, budget: Budget) -> Result<bool> {
        let raise = TxnRequest {
            compare: vec![unchanged(self.keys.writer(), modified)],
            success: vec![put(self.keys.writer(), WRITER_LEVEL.to_string().into_bytes(), 0)],
            ..TxnRequest::default()
        };
        // To ask for it twice does no harm, so it may be asked for like a read.
        match self.endpoints.read::<_, TxnResponse>(path::TXN, raise, budget).await {
            Ok(answer) if answer.succeeded => {
                let revision = answer.header.map_or(0, |header| header.revision);
                self.writer.store(revision, Ordering::Release);
                Ok(true)
            }
            Ok(_) => Ok(false),
            // Whoever may not write harms nobody, and neither does a store that is full.
            Err(error @ (Error::Refused { .. } | Error::Full { .. })) => {
                tracing::debug!(%error, "the writer level stays as it is");
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// How many servers vote, and so keep everything. `None` if they do not tell: nothing rests on it.
    pub(crate) async fn members(&self) -> Option<u32> {
        let budget = self.endpoints.budget();
        let link = self.endpoints.link(budget).await.ok()?;
        let asking = link.call(path::MEMBERS, Nothing {});
        let left = self.endpoints.left(budget);
        let answer: MemberListResponse = tokio::time::timeout(left, asking).await.ok()?.ok()?;
        let votes = answer.members.iter().filter(|member| !member.is_learner).count();
        u32::try_from(votes).ok().filter(|votes| *votes > 0)
    }

    /// Keeps etcd leases alive, one answer for each. All of them on one connection.
    pub(crate) async fn keep_alive(
        &self,
        link: &Link,
        leases: &[i64],
    ) -> Vec<Result<Renewed, Fault>> {
        join_all(leases.iter().map(|lease| link.keep_alive(*lease))).await
    }

    /// Keeps the etcd leases of a commit alive for certain. The outer error is about all of them.
    ///
    /// A server that was the leader until a moment ago, and does not know better yet, still answers
    /// keep-alives. So each is believed only beside a linearizable read on the same connection in the
    /// same term: then that server had its majority after the keep-alive was asked for, or its
    /// successor came later and gave every lease a full life.
    pub(crate) async fn keep_alive_for_certain(
        &self,
        leases: &[i64],
        budget: Budget,
    ) -> Result<Vec<Result<(), Fault>>> {
        loop {
            let link = self.endpoints.link(budget).await?;
            let attempt = self.endpoints.left(budget).min(self.endpoints.options.attempt);
            let watched = Watched::new(&self.endpoints, &link);
            let both = futures::future::join(self.keep_alive(&link, leases), self.term(&link));
            let answers = tokio::time::timeout(attempt, both).await;
            watched.done();
            let believed = match answers {
                Ok((renewed, Ok(term))) => believed(renewed, term),
                Ok((_, Err(fault))) => Err(fault),
                Err(_) => Err(Fault::Unclear(format!("no keep-alive within {attempt:?}"))),
            };
            let fault = match believed {
                Ok(renewed) => return Ok(renewed),
                Err(fault) => fault,
            };
            self.endpoints.fail_by(&link, &fault);
            // A server may go on to answer reads and to break keep-alives at once.
            if !self.endpoints.pause(budget).await {
                return Err(fault.of_read());
            }
        }
    }

    /// The term of the server, by a read that it can only answer with a majority behind it.
    async fn term(&self, link: &Link) -> Result<u64, Fault> {
        let key = self.keys.writer();
        let question = RangeRequest { key, range_end: vec![], limit: 1, count_only: true };
        let answer: RangeResponse = link.call(path::RANGE, question).await?;
        Ok(answer.header.map_or(0, |header| header.raft_term))
    }
}

/// The answers, if all of them count in this term; else what to try again for.
pub(crate) fn believed(
    renewed: Vec<Result<Renewed, Fault>>,
    term: u64,
) -> Result<Vec<Result<(), Fault>>, Fault> {
    let mut answers = Vec::with_capacity(renewed.len());
    for answer in renewed {
        answers.push(match answer {
            Ok(renewed) if renewed.term == term => Ok(()),
            Ok(_) => return Err(Fault::Later("the leader changed".into())),
            Err(Fault::NoLease) => Err(Fault::NoLease),
            // They were not answered; another server may do better.
            Err(fault) => return Err(Fault::Elsewhere(fault.of_read().to_string())),
        });
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader that was deposed between the two answers may have given only one of them.
    #[test]
    fn a_keep_alive_counts_in_its_own_term_only() {
        let in_term = |term| Ok(Renewed { term });
        let gone = || Err(Fault::NoLease);
        assert!(matches!(&believed(vec![in_term(7), gone()], 7).unwrap()[..], [Ok(()), Err(_)]));
        for other in [6, 8, 0] {
            let told = believed(vec![in_term(7), in_term(other), gone()], 7);
            assert!(matches!(told, Err(Fault::Later(_))), "{other}: {told:?}");
        }
        let broke = Err(Fault::Unclear("it broke".into()));
        assert!(matches!(believed(vec![in_term(7), broke], 7), Err(Fault::Elsewhere(_))));
    }
}
