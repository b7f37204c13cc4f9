//! Small calls of one client, many at once on one stream.
//!
//! Calls are worked on whether or not their answers can leave: one whose client does not read must not
//! hold what others wait for. The client is held back instead, and nothing grows beyond a bound.

use std::collections::VecDeque;

use futures::TryFutureExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use prost::Message;
use tenure::Error;
use tenure_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::Answers;
use super::store::{commit, get, touch};
use crate::api::View;
use crate::limits::Taken;

/// Calls that are worked on or answered and unsent; the client is held back beyond that.
const CALLS: usize = 1_024;
/// Messages that a slow reader may leave unread.
const UNREAD: usize = 4;
/// Answers in one message, in bytes: as many as fit, and one at least.
const TOGETHER: usize = 1024 * 1024;

pub(super) fn start(
    view: View,
    room: Taken,
    incoming: Streaming<v1::ExchangeRequest>,
) -> Answers<v1::ExchangeResponse> {
    let (answers, outgoing) = mpsc::channel(UNREAD);
    tokio::spawn(async move {
        let _room = room;
        exchange(view, incoming, answers).await;
    });
    Box::pin(ReceiverStream::new(outgoing))
}

/// What is left to do for one client.
#[derive(Default)]
struct Work<'a> {
    /// Of the last message, what is not yet worked on.
    queued: VecDeque<v1::Call>,
    running: FuturesUnordered<BoxFuture<'a, v1::Answer>>,
    done: Vec<v1::Answer>,
    /// What the answers that are done take on the wire.
    bytes: usize,
}

impl<'a> Work<'a> {
    /// Begins as many calls as there is room for.
    fn begin(&mut self, view: &'a View) {
        while self.running.len() + self.done.len() < CALLS
            && let Some(call) = self.queued.pop_front()
        {
            self.running.push(answer(view, call).boxed());
        }
    }

    /// Takes one answer, and those that are ready with it.
    fn take(&mut self, first: v1::Answer) {
        self.add(first);
        while let Some(Some(answer)) = self.running.next().now_or_never() {
            self.add(answer);
        }
    }

    fn add(&mut self, answer: v1::Answer) {
        self.bytes += answer.encoded_len();
        self.done.push(answer);
    }

    /// As many answers as go into one message.
    fn message(&mut self) -> v1::ExchangeResponse {
        let mut fit = self.done.len();
        if self.bytes > TOGETHER {
            let total = self.done.iter().scan(0, |total, answer| {
                *total += answer.encoded_len();
                Some(*total)
            });
            fit = total.take_while(|total| *total <= TOGETHER).count().max(1);
        }
        let rest = self.done.split_off(fit.min(self.done.len()));
        self.bytes = rest.iter().map(Message::encoded_len).sum();
        let answers = std::mem::replace(&mut self.done, rest);
        v1::ExchangeResponse { answers, leaving: false }
    }
}

/// Works on the calls of a stream until its client closes it. A server that leaves says so, and goes on
/// until the client has closed its side: what was sent is answered.
async fn exchange(
    view: View,
    mut incoming: Streaming<v1::ExchangeRequest>,
    answers: mpsc::Sender<Result<v1::ExchangeResponse, Status>>,
) {
    let shutdown = view.api().shutdown().clone();
    let leaves = shutdown.leaving();
    tokio::pin!(leaves);
    let (mut open, mut leaving, mut told) = (true, false, false);
    let mut work = Work::default();
    loop {
        work.begin(&view);
        if !open && work.running.is_empty() && work.done.is_empty() {
            return;
        }
        tokio::select! {
            biased;
            () = &mut leaves, if !leaving => leaving = true,
            Some(answer) = work.running.next(), if !work.running.is_empty() => work.take(answer),
            place = answers.reserve(), if !work.done.is_empty() || (leaving && !told) => {
                let Ok(place) = place else { return };
                let first = leaving && !told;
                told |= leaving;
                place.send(Ok(v1::ExchangeResponse { leaving: first, ..work.message() }));
            }
            message = incoming.message(), if open && work.queued.is_empty() => match message {
                Ok(Some(message)) => work.queued.extend(message.calls),
                Ok(None) | Err(_) => open = false,
            },
        }
    }
}

async fn answer(view: &View, call: v1::Call) -> v1::Answer {
    use v1::answer::Answer;
    let answer = work_on(view, call.call).await;
    let answer = answer.unwrap_or_else(|fault| Answer::Error(Box::new(fault.wire())));
    v1::Answer { id: call.id, answer: Some(answer) }
}

async fn work_on(
    view: &View,
    call: Option<v1::call::Call>,
) -> Result<v1::answer::Answer, crate::Fault> {
    use v1::answer::Answer;
    use v1::call::Call;
    let _room = view.api().room().in_turn().await?;
    match call {
        Some(Call::Get(request)) => {
            get(view, request).map_ok(|got| Answer::Get(Box::new(got))).await
        }
        Some(Call::Commit(request)) => commit(view, request).map_ok(Answer::Commit).await,
        Some(Call::Touch(request)) => touch(view, request).map_ok(Answer::Touch).await,
        None => Err(Error::invalid("call", "it is missing from the message").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: u64, bytes: usize) -> v1::Answer {
        let object = v1::Object { payload: vec![0; bytes].into(), ..v1::Object::default() };
        let got = v1::GetResponse { object: Some(object) };
        v1::Answer { id, answer: Some(v1::answer::Answer::Get(Box::new(got))) }
    }

    #[test]
    fn answers_go_together_as_far_as_they_fit_and_a_large_one_goes_alone() {
        let mut work = Work::default();
        for (id, bytes) in [(1, 10), (2, TOGETHER / 2), (3, TOGETHER), (4, 2 * TOGETHER), (5, 10)] {
            work.add(answer(id, bytes));
        }
        let ids = |message: v1::ExchangeResponse| -> Vec<u64> {
            message.answers.iter().map(|answer| answer.id).collect()
        };
        assert_eq!(ids(work.message()), [1, 2]);
        assert_eq!(ids(work.message()), [3]);
        assert_eq!(ids(work.message()), [4]);
        assert_eq!(ids(work.message()), [5]);
        assert_eq!((ids(work.message()).len(), work.bytes), (0, 0));
    }
}
