//! The way to an orderly end.
//!
//! First the server says that it is leaving: it is no longer ready, waits are answered, watches end,
//! sessions are told to move, and nothing new is accepted. What was begun gets a while to finish.

use tokio::sync::watch;

/// Tells everybody that the server is leaving. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown {
    leaving: watch::Sender<bool>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { leaving: watch::Sender::new(false) }
    }
}

impl Shutdown {
    /// Begins the end.
    pub fn begin(&self) {
        self.leaving.send_replace(true);
    }

    /// Whether it has begun.
    pub fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Resolves when it begins.
    pub async fn leaving(&self) {
        // It cannot fail: we hold the sender.
        let _ = self.leaving.subscribe().wait_for(|leaving| *leaving).await;
    }

    /// Runs something, unless the server leaves before it is done.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            output = work => Some(output),
            () = self.leaving() => None,
        }
    }
}
