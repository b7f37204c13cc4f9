//! Keep-alives that are believed only beside a read of the same term.
//!
//! A server that was the leader until a moment ago, and does not know better yet, still answers
//! keep-alives. So each is believed only beside a linearizable read on the same connection in the same
//! term: then that server had its majority after the keep-alive was asked for, or its successor came
//! later and gave every lease a full life.

use futures::future::{join, join_all};
use tenure::Result;

use crate::connection::Connection;
use crate::endpoints::{CallGuard, Deadline};
use crate::error::CallError;
use crate::inner::Inner;
use crate::keep_alive::Renewed;
use crate::messages::{RangeRequest, RangeResponse, path};

impl Inner {
    /// Keeps etcd leases alive, one answer for each. All of them on one connection.
    pub(crate) async fn keep_alive(
        &self,
        connection: &Connection,
        leases: &[i64],
    ) -> Vec<Result<Renewed, CallError>> {
        join_all(leases.iter().map(|lease| connection.keep_alive(*lease))).await
    }

    /// Keeps the etcd leases of a commit alive for certain. The outer error is about all of them.
    pub(crate) async fn keep_alive_for_certain(
        &self,
        leases: &[i64],
        deadline: Deadline,
    ) -> Result<Vec<Result<(), CallError>>> {
        loop {
            let connection = self.endpoints.connection(deadline).await?;
            let attempt = self.endpoints.time_left(deadline).min(self.endpoints.options.attempt);
            let guard = CallGuard::new(&self.endpoints, &connection);
            let both = join(self.keep_alive(&connection, leases), self.term(&connection));
            let answers = tokio::time::timeout(attempt, both).await;
            guard.answered();
            let believed = match answers {
                Ok((renewed, Ok(term))) => believed(renewed, term),
                Ok((_, Err(error))) => Err(error),
                Err(_) => Err(CallError::Unknown(format!("no keep-alive within {attempt:?}"))),
            };
            let error = match believed {
                Ok(renewed) => return Ok(renewed),
                Err(error) => error,
            };
            self.endpoints.fail_by(&connection, &error);
            // A server may go on to answer reads and to break keep-alives at once.
            if !self.endpoints.pause(deadline).await {
                return Err(error.into_read_error());
            }
        }
    }

    /// The term of the server, by a read that it can only answer with a majority behind it.
    async fn term(&self, connection: &Connection) -> Result<u64, CallError> {
        let key = self.keys.writer();
        let question = RangeRequest { key, range_end: vec![], limit: 1, count_only: true };
        let answer: RangeResponse = connection.call(path::RANGE, question).await?;
        Ok(answer.header.map_or(0, |header| header.raft_term))
    }
}

/// The answers, if all of them count in this term; else what to try again for.
pub(crate) fn believed(
    renewed: Vec<Result<Renewed, CallError>>,
    term: u64,
) -> Result<Vec<Result<(), CallError>>, CallError> {
    let mut answers = Vec::with_capacity(renewed.len());
    for answer in renewed {
        answers.push(match answer {
            Ok(renewed) if renewed.term == term => Ok(()),
            Ok(_) => return Err(CallError::TryLater("the leader changed".into())),
            Err(CallError::LeaseNotFound) => Err(CallError::LeaseNotFound),
            // They were not answered; another server may do better.
            Err(error) => return Err(CallError::TryElsewhere(error.into_read_error().to_string())),
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
        let gone = || Err(CallError::LeaseNotFound);
        assert!(matches!(&believed(vec![in_term(7), gone()], 7).unwrap()[..], [Ok(()), Err(_)]));
        for other in [6, 8, 0] {
            let told = believed(vec![in_term(7), in_term(other), gone()], 7);
            assert!(matches!(told, Err(CallError::TryLater(_))), "{other}: {told:?}");
        }
        let broke = Err(CallError::Unknown("it broke".into()));
        assert!(matches!(believed(vec![in_term(7), broke], 7), Err(CallError::TryElsewhere(_))));
    }
}
