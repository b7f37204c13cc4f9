//! Finding the cluster and the credentials for it.

use std::path::Path;
use std::time::Duration;

use http::HeaderValue;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::account::{self, Token};
use crate::options::Options;

const AGENT: &str = concat!("tenure/", env!("CARGO_PKG_VERSION"));
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// How to reach the cluster.
pub(crate) struct Connected {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// What each request has to show; `None` if the client sees to that.
    pub(crate) token: Option<Token>,
}

pub(crate) async fn connect(options: &Options) -> Result<Connected> {
    let (mut config, token) = config(options).await?;
    config.connect_timeout = Some(CONNECT);
    // A write that was answered 504 may have been applied; sent again, it would meet itself.
    config.default_retry = false;
    // Who this is, in the server's logs and in the managed fields of a Lease.
    config.headers.push((http::header::USER_AGENT, HeaderValue::from_static(AGENT)));
    let namespace = options.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    check_namespace(&namespace)?;
    let client = Client::try_from(config)
        .map_err(|error| Error::invalid("cluster configuration", error.to_string()))?;
    Ok(Connected { client, namespace, token })
}

async fn config(options: &Options) -> Result<(Config, Option<Token>)> {
    let choice = KubeConfigOptions { context: options.context.clone(), ..Default::default() };
    // A kubeconfig or a context that is named comes first. Else a pod uses the cluster it runs in.
    let file = match (&options.kubeconfig, &options.service_account) {
        (Some(path), _) => Some(Kubeconfig::read_from(path).map_err(invalid)?),
        (None, Some(folder)) => return account(folder),
        (None, None) if options.context.is_none() && is_account(Path::new(account::FOLDER)) => {
            return account(Path::new(account::FOLDER));
        }
        (None, None) => None,
    };
    let config = match file {
        Some(file) => Config::from_custom_kubeconfig(file, &choice).await,
        None => Config::from_kubeconfig(&choice).await,
    };
    Ok((config.map_err(invalid)?, None))
}

fn account(folder: &Path) -> Result<(Config, Option<Token>)> {
    let (config, token) = account::read(folder)?;
    Ok((config, Some(token)))
}

fn is_account(folder: &Path) -> bool {
    account::in_a_pod() && folder.exists()
}

fn invalid(error: kube::config::KubeconfigError) -> Error {
    let mut reason = format!("{error}; give one with ?kubeconfig=, KUBECONFIG or ~/.kube/config");
    if account::in_a_pod() && !Path::new(account::FOLDER).exists() {
        reason = format!(
            "{reason}, or let this pod have its service account, which would be in {} \
             (automountServiceAccountToken: true)",
            account::FOLDER
        );
    }
    Error::invalid("kubeconfig", reason)
}

/// It becomes part of a path, so it has to be a name and nothing else.
fn check_namespace(namespace: &str) -> Result<()> {
    let part = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    if !namespace.is_empty() && namespace.len() <= 63 && namespace.bytes().all(part) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{BACKEND} namespace {namespace:?}"),
        "it is a DNS label: lower-case letters, digits and '-'",
    ))
}
