//! A limit on how long a call may take, with a timer only for calls that do not end at once.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// What the call answers; `None` if it takes longer.
pub(crate) async fn bounded<T>(limit: Duration, call: impl Future<Output = T>) -> Option<T> {
    let (mut call, mut timer) = (pin!(call), pin!(None));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        if timer.is_none() {
            timer.set(Some(tokio::time::sleep(limit)));
        }
        // It was set, if not now then before.
        timer.as_mut().as_pin_mut().map_or(Poll::Pending, |timer| timer.poll(cx).map(|()| None))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_ends_in_time_is_answered_and_what_does_not_is_given_up() {
        let minute = Duration::from_secs(60);
        assert_eq!(bounded(minute, async { 7 }).await, Some(7));
        assert_eq!(bounded(minute, tokio::task::yield_now()).await, Some(()));
        let never = std::future::pending::<()>();
        assert_eq!(bounded(Duration::from_millis(20), never).await, None);
    }
}
