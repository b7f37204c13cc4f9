//! The signals that `tenure run` passes on to its command.

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit;

/// All of them, as they arrive. While there is one of these, none of them ends this process.
pub(crate) struct Signals {
    streams: Vec<(tokio::signal::unix::Signal, Signal)>,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        let kinds = [
            (SignalKind::interrupt(), Signal::INT),
            (SignalKind::terminate(), Signal::TERM),
            (SignalKind::hangup(), Signal::HUP),
            (SignalKind::quit(), Signal::QUIT),
            (SignalKind::user_defined1(), Signal::USR1),
            (SignalKind::user_defined2(), Signal::USR2),
            (SignalKind::window_change(), Signal::WINCH),
        ];
        let streams = kinds.map(|(kind, passed)| Ok((signal(kind)?, passed)));
        Ok(Self { streams: streams.into_iter().collect::<std::io::Result<_>>()? })
    }

    pub(crate) async fn next(&mut self) -> Signal {
        let waiting = self.streams.iter_mut().map(|(stream, passed)| {
            Box::pin(async {
                if stream.recv().await.is_none() {
                    std::future::pending::<()>().await;
                }
                *passed
            })
        });
        futures::future::select_all(waiting).await.0
    }

    /// The first that ends somebody who has no command yet.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].contains(&signal) {
                return signal;
            }
        }
    }
}

/// From here on none of them ends this process, which has no use for them. The handlers stay when the
/// runtime that they need to be set goes.
pub(crate) fn outlive() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = runtime.enter();
    Signals::new().map(drop)
}

/// The exit code of somebody who was interrupted before its command began.
pub(crate) fn code_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(exit::FAILED)
}
