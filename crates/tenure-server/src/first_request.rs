//! A timeout for the first request of a connection.
//!
//! A client that connects and then sends nothing, or half of something, keeps a place that another could
//! have. So a connection has a while for the head of its first request, or for the preface of HTTP/2 and the
//! head of the frame after it; then it is closed. After that it may be idle: HTTP/2 is asked for signs of
//! life, and HTTP/1 has a timeout of its own for the next request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The head of a frame.
const FRAME_HEAD: usize = 9;

/// A connection that has so long to begin, and the service that tells when it has.
pub(crate) fn first_request_timeout<I, S>(
    io: I,
    service: S,
    timeout: Duration,
) -> (TokioIo<FirstRequestTimeout<I>>, NotesRequests<S>) {
    let started = Started::default();
    (
        TokioIo::new(FirstRequestTimeout::new(io, started.clone(), timeout)),
        NotesRequests { service, started },
    )
}

/// Set with the first request.
#[derive(Clone, Default)]
struct Started(Arc<AtomicBool>);

impl Started {
    /// A request is there, with all of its head.
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A service that takes note of requests.
pub(crate) struct NotesRequests<S> {
    service: S,
    started: Started,
}

impl<R, S: Service<R>> Service<R> for NotesRequests<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: R) -> Self::Future {
        self.started.set();
        self.service.call(request)
    }
}

/// A connection that fails with [`io::ErrorKind::TimedOut`] unless it begins in time.
pub(crate) struct FirstRequestTimeout<S> {
    io: S,
    waiting: Option<Waiting>,
}

/// What is waited for, until when.
struct Waiting {
    started: Started,
    deadline: Pin<Box<Sleep>>,
    heard: usize,
    /// All that was heard so far could be the beginning of HTTP/2.
    http2: bool,
}

impl<S> FirstRequestTimeout<S> {
    fn new(io: S, started: Started, within: Duration) -> Self {
        let deadline = Box::pin(tokio::time::sleep(within));
        Self { io, waiting: Some(Waiting { started, deadline, heard: 0, http2: true }) }
    }
}

impl Waiting {
    /// Takes note of what was read, and tells whether the connection has started with that.
    fn hear(&mut self, bytes: &[u8]) -> bool {
        let expected = PREFACE.iter().skip(self.heard);
        self.http2 &= bytes.iter().zip(expected).all(|(byte, expected)| byte == expected);
        self.heard += bytes.len();
        self.http2 && self.heard >= PREFACE.len() + FRAME_HEAD
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstRequestTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(waiting) = &mut this.waiting {
            if waiting.started.is_set() {
                this.waiting = None;
            } else if waiting.deadline.as_mut().poll(context).is_ready() {
                let late = io::Error::new(io::ErrorKind::TimedOut, "it did not begin in time");
                return Poll::Ready(Err(late));
            }
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(context, buffer))?;
        if let Some(waiting) = &mut this.waiting
            && waiting.hear(&buffer.filled()[before..])
        {
            this.waiting = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstRequestTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        all: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, all)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    const WITHIN: Duration = Duration::from_millis(100);

    /// What reading all of this and then waiting ends with, byte by byte and at once.
    async fn read(bytes: &[u8], started: bool) -> Vec<Result<usize, io::ErrorKind>> {
        let mut ends = Vec::new();
        for piece in [1, bytes.len().max(1)] {
            let (ours, mut theirs) = tokio::io::duplex(1024);
            let flag = Started::default();
            let mut connection = FirstRequestTimeout::new(ours, flag.clone(), WITHIN);
            for part in bytes.chunks(piece) {
                tokio::io::AsyncWriteExt::write_all(&mut theirs, part).await.unwrap();
                connection.read_exact(&mut vec![0; part.len()]).await.unwrap();
            }
            if started {
                flag.set();
            }
            let waited = tokio::time::timeout(3 * WITHIN, connection.read(&mut [0; 1])).await;
            // To be silent for longer than that is what an idle connection may do.
            ends.push(waited.unwrap_or(Ok(0)).map_err(|error| error.kind()));
        }
        ends
    }

    #[tokio::test]
    async fn whoever_does_not_begin_is_cut_off_and_whoever_does_may_be_idle() {
        let settings = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
        let late = || vec![Err(io::ErrorKind::TimedOut); 2];
        let half = b"POST /v1/leases/acquire HTTP/1.1\r\nhost: a\r\nx: a-header-without-an-end";
        for bytes in [&b""[..], b"P", b"PRI * HT", PREFACE, &settings[..30], half] {
            assert_eq!(read(bytes, false).await, late(), "{}", bytes.escape_ascii());
        }
        assert_eq!(read(half, true).await, [Ok(0), Ok(0)]);
        assert_eq!(read(&settings, false).await, [Ok(0), Ok(0)]);
    }
}
