//! A watch that survives its connection: it goes on at the next server after the last revision seen.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use tenure::backend::Progress;
use tenure::store::{Batch, Watch, WatchRequest};
use tenure::{Error, Result};
use tenure_proto::v1;
use tonic::Streaming;
use tonic::metadata::{Ascii, MetadataValue};

use crate::BACKEND;
use crate::error::Fault;
use crate::servers::{Servers, pause};

/// How long a watch looks for a server before it tells that there is none.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// How far a server may be behind the one before it, in attempts to go on there.
const BEHIND: u32 = 12;

/// A watch and where it is.
struct Following {
    servers: Arc<Servers>,
    request: v1::WatchRequest,
    incoming: Streaming<v1::WatchResponse>,
    server: usize,
    /// The token that it was begun with.
    shown: Option<MetadataValue<Ascii>>,
    /// Everything up to here has been told.
    seen: u64,
    progress: Progress,
    /// Whether it can go on where it was.
    resumes: bool,
}

/// Starts a watch.
pub(crate) async fn start(
    servers: &Arc<Servers>,
    request: &WatchRequest,
    resumes: bool,
) -> Result<Watch> {
    let request = v1::WatchRequest::from(request);
    let shown = servers.shown();
    let (server, incoming, seen) = open(servers, &request).await.map_err(Fault::of_read)?;
    let servers = Arc::clone(servers);
    let progress = Progress::new(seen);
    let following = Following {
        servers,
        request,
        incoming,
        server,
        shown,
        seen,
        progress: progress.clone(),
        resumes,
    };
    let batches = stream::unfold(Some(following), |following| async move {
        let mut following = following?;
        match following.next().await {
            Ok(Some(batch)) => Some((Ok(Arc::new(batch)), Some(following))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Watch::with_progress(seen, progress, batches.boxed()))
}

/// Opens a watch at the server in use or the next, and learns where it starts.
async fn open(
    servers: &Arc<Servers>,
    request: &v1::WatchRequest,
) -> std::result::Result<(usize, Streaming<v1::WatchResponse>, u64), Fault> {
    let (server, mut incoming) = servers
        .call(|mut client| {
            let request = servers.request(request.clone());
            async move { client.watch(request).await }
        })
        .await?;
    let first = tokio::time::timeout(servers.options.timeout, incoming.message());
    match first.await {
        Ok(Ok(Some(first))) => Ok((server, incoming, first.revision)),
        Ok(Ok(None)) => Err(Fault::NotSent("the watch ended before it began".into())),
        Ok(Err(status)) => Err(status.into()),
        Err(_) => Err(Fault::NotSent("the watch did not begin in time".into())),
    }
}

impl Following {
    async fn next(&mut self) -> Result<Option<Batch>> {
        loop {
            let message = tokio::select! {
                biased;
                message = self.incoming.message() => message,
                () = self.servers.closed() => {
                    return Err(Error::unavailable(BACKEND, "the store is closed"));
                }
            };
            let fault = match message {
                Ok(Some(message)) if message.events.is_empty() => {
                    // Nothing that concerns us happened up to there.
                    self.seen = self.seen.max(message.revision);
                    self.progress.reach(self.seen);
                    continue;
                }
                Ok(Some(message)) => {
                    self.seen = message.revision;
                    return message.try_into().map(Some);
                }
                Ok(None) => Fault::Unknown("the server ended the watch".into()),
                Err(status) => match Fault::from(status) {
                    // It may have been the token that ended; there is another one by now.
                    Fault::No(_) if self.resumes && self.servers.shown() != self.shown => {
                        self.resume().await?;
                        continue;
                    }
                    Fault::No(error) => return Err(error),
                    fault => fault,
                },
            };
            if !self.resumes {
                return Err(fault.of_read());
            }
            self.servers.fail_over(self.server, fault);
            self.resume().await?;
        }
    }

    /// Goes on after what was seen, at whichever server answers.
    async fn resume(&mut self) -> Result<()> {
        self.request.after = Some(self.seen);
        self.shown = self.servers.shown();
        let looking = async {
            for attempt in 0.. {
                match open(&self.servers, &self.request).await {
                    Ok(opened) => return Ok(opened),
                    // It does not know yet of what we have seen at the other.
                    Err(Fault::No(Error::Invalid { .. })) if attempt < BEHIND => {
                        tokio::time::sleep(pause(attempt)).await;
                    }
                    Err(Fault::No(error)) => return Err(error),
                    Err(_) if self.servers.is_closed() => break,
                    Err(_) => tokio::time::sleep(pause(attempt)).await,
                }
            }
            Err(Error::unavailable(BACKEND, "the store is closed"))
        };
        let found = tokio::time::timeout(REOPEN_TIMEOUT, looking).await;
        let none = || Err(Error::unavailable(BACKEND, self.servers.why_none()));
        let (server, incoming, _) = found.unwrap_or_else(|_| none())?;
        (self.server, self.incoming) = (server, incoming);
        Ok(())
    }
}
