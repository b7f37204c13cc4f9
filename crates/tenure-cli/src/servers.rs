//! Stores behind a server, by URL.

use std::path::PathBuf;

use tenure::store::Store;
use tenure::{Error, Result};
use tenure_client::{Options, ServerStore};

/// How to show a server who we are, besides what the environment says.
#[derive(clap::Args, Clone)]
pub(crate) struct Login {
    /// The file with the token to show to the server; it may be replaced while this runs
    /// [env: TENURE_BEARER, the token itself].
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    bearer_file: Option<PathBuf>,
    /// The authority that signed the server's certificate, if it is not one of the system's.
    #[arg(long, env = "TENURE_CA", value_name = "FILE", help_heading = "Server")]
    ca: Option<PathBuf>,
    /// A certificate to show to the server, with --key.
    #[arg(
        long,
        env = "TENURE_CERT",
        value_name = "FILE",
        requires = "key",
        help_heading = "Server"
    )]
    cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(
        long,
        env = "TENURE_KEY",
        value_name = "FILE",
        requires = "cert",
        help_heading = "Server"
    )]
    key: Option<PathBuf>,
}

impl Login {
    /// The store behind a server.
    pub(crate) async fn open(&self, url: &str) -> Result<Store> {
        let mut options = Options::new(url)?;
        if let Some(path) = &self.bearer_file {
            options = options.token_file(path);
        } else if let Ok(token) = std::env::var("TENURE_BEARER")
            && !token.trim().is_empty()
        {
            options = options.token(token.trim());
        }
        if let Some(ca) = &self.ca {
            options = options.ca(text(ca)?);
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            options = options.identity(text(cert)?, text(key)?);
        }
        Ok(ServerStore::open(options).await?.into_store())
    }
}

fn text(path: &PathBuf) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Error::invalid(format!("file {}", path.display()), format!("it cannot be read: {error}"))
    })
}
