//! The first look at the server's clock, by a process that has just connected.
//!
//! Such a process cannot tell whether the clock was stepped a moment ago. Processes that are already
//! connected can, because each compares the server's clock with its own steady one. So the new process
//! asks them, by a notification, to look at the clock and to correct the record, and waits for one answer.
//! It looks at the clock before and after, and by its own steady clock knows whether the server's was
//! stepped in between.
//!
//! If no other process is connected, the record counts as it is. A server that has just started is given a
//! moment first, so that processes which lost their connection can come back. Processes that are frozen or
//! gone do not answer and are waited for a few seconds at most. [`crate::watch::listen`] answers.

use std::time::Duration;

use tenure::Result;
use tenure::clock::{Clock as _, SystemClock};
use tokio_postgres::types::Type;

use crate::connect::session::quoted;
use crate::error::Failure;
use crate::time::{Glance, Sample, Timekeeper, WALL_MS, went_steadily};
use crate::watch::listen::{Listener, Names};

/// So old a server is that all who were connected before it started are back.
const BACK_AFTER_MS: i64 = 1_500;
/// How long those who do not answer hold a newcomer up.
const BOUND: Duration = Duration::from_secs(3);
/// The first wait for an answer, after which it looks whether those who were asked are still there.
/// Each one after it is twice as long, up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(400);
/// So many are asked first; all of them only if none of these has answered by then.
const ASKED_FIRST: usize = 3;
const ASK_ALL_AFTER: Duration = Duration::from_millis(150);

/// One look at the server.
struct Look {
    sent: Duration,
    received: Duration,
    sample: Sample,
    /// Since the server started, by its own clock.
    up_ms: i64,
    /// The sessions with which other processes listen.
    others: Vec<i32>,
}

/// Learns the store's time, so that no step of the server's clock until now matters.
pub(crate) async fn agree(
    listener: &mut Listener,
    names: &Names,
    time: &Timekeeper,
    patience: Duration,
) -> Result<()> {
    let agreed = tokio::time::timeout(patience + BOUND, settle(listener, names, time)).await;
    agreed
        .unwrap_or_else(|_| Err(Failure::timeout("the first look at the clock", patience)))
        .map_err(|failure| failure.error)
}

async fn settle(listener: &mut Listener, names: &Names, time: &Timekeeper) -> Result<(), Failure> {
    let begun = SystemClock.uptime();
    let mut before = look(listener, names, time).await?;
    while before.may_find_more() && SystemClock.uptime().saturating_sub(begun) < BOUND {
        time.sleep(SHORTEST * 5).await;
        before = look(listener, names, time).await?;
    }
    if before.others.is_empty() {
        time.learn(before.sent, before.received, before.sample);
        return Ok(());
    }
    let answers = names.answers_to(listener.pid);
    listener.session.client.batch_execute(&format!("listen {}", quoted(&answers))).await?;
    let begun = SystemClock.uptime();
    let mut wait = SHORTEST;
    // Answers to a question of before a step say nothing about the time after it.
    let mut question = 1_u32;
    ask(listener, names, question, &first_asked(&before.others, listener.pid)).await?;
    let after = loop {
        let answered = heard(listener, &answers, question, wait).await;
        let after = look(listener, names, time).await?;
        let steadily = went_steadily(before.glance(), after.glance());
        if after.others.is_empty() || (answered && steadily) {
            break after;
        }
        let waited = SystemClock.uptime().saturating_sub(begun);
        if waited >= BOUND {
            tracing::warn!(
                others = after.others.len(),
                "nobody else who uses this database answers; the server's clock is taken as it is"
            );
            break after;
        }
        let stepped = !steadily;
        if stepped {
            (before, question) = (after, question + 1);
        }
        if stepped || waited >= ASK_ALL_AFTER {
            ask(listener, names, question, "*").await?;
        }
        wait = (wait * 2).min(LONGEST);
    };
    time.learn(after.sent, after.received, after.sample);
    listener.session.client.batch_execute(&format!("unlisten {}", quoted(&answers))).await?;
    Ok(())
}

impl Look {
    /// Whether somebody may be on the way back to a server that has just started. Where nothing was ever
    /// recorded there was nobody.
    fn may_find_more(&self) -> bool {
        let young = (0..BACK_AFTER_MS).contains(&self.up_ms);
        young && self.others.is_empty() && self.sample.last_ms > 0
    }

    fn glance(&self) -> Glance {
        (self.sent, self.received, self.sample.wall_ms)
    }
}

async fn look(listener: &Listener, names: &Names, time: &Timekeeper) -> Result<Look, Failure> {
    // Everybody may see the names of sessions, whoever they belong to.
    let sql = format!(
        "select array(select pid from pg_catalog.pg_stat_activity \
           where application_name = $1 and datname = current_database() \
             and pid <> pg_backend_pid() order by pid), \
         {WALL_MS}, clock_offset_ms, clock_last_ms, \
         floor(date_part('epoch', pg_postmaster_start_time()) * 1000)::bigint from tenure_meta"
    );
    let sent = time.uptime();
    let row =
        listener.session.client.query_typed_one(&sql, &[(&names.presence, Type::TEXT)]).await?;
    let received = time.uptime();
    let sample = Sample { wall_ms: row.get(1), offset_ms: row.get(2), last_ms: row.get(3) };
    let up_ms = sample.wall_ms - row.get::<_, i64>(4);
    Ok(Look { sent, received, sample, up_ms, others: row.get(0) })
}

/// Not always the same ones.
fn first_asked(others: &[i32], own: i32) -> String {
    let skipped = usize::try_from(own).unwrap_or(0) % others.len().max(1);
    let asked = others.iter().cycle().skip(skipped).take(others.len().min(ASKED_FIRST));
    asked.map(i32::to_string).collect::<Vec<_>>().join(",")
}

async fn ask(
    listener: &Listener,
    names: &Names,
    question: u32,
    asked: &str,
) -> Result<(), Failure> {
    let payload = format!("{question} {asked}");
    let parameters = [(&names.clock as _, Type::TEXT), (&payload as _, Type::TEXT)];
    listener.session.client.query_typed("select pg_notify($1, $2)", &parameters).await?;
    Ok(())
}

/// Whether an answer to this question came in time.
async fn heard(listener: &mut Listener, answers: &str, question: u32, within: Duration) -> bool {
    let question = question.to_string();
    let hearing = async {
        while let Some(heard) = listener.notifications.recv().await {
            if heard.channel() == answers && heard.payload() == question {
                return true;
            }
        }
        // The session is gone, which the next look notices.
        false
    };
    tokio::time::timeout(within, hearing).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_asked_first_and_not_always_the_same() {
        assert_eq!(first_asked(&[7], 100), "7");
        assert_eq!(first_asked(&[7, 8], 101), "8,7");
        assert_eq!(first_asked(&[1, 2, 3, 4, 5], 4), "5,1,2");
        assert_eq!(first_asked(&[1, 2, 3, 4, 5], 0), "1,2,3");
        assert_eq!(first_asked(&[], 3), "");
    }
}
