//! Finding the cluster and the credentials for it.

use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::options::Options;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// A client, and the namespace to use.
pub(crate) async fn connect(options: &Options) -> Result<(Client, String)> {
    let mut config = config(options).await?;
    config.connect_timeout = Some(CONNECT);
    // A write that was answered 504 may have been applied; sent again, it would meet itself.
    config.default_retry = false;
    let namespace = options.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    check_namespace(&namespace)?;
    let client = Client::try_from(config)
        .map_err(|error| Error::invalid("cluster configuration", error.to_string()))?;
    Ok((client, namespace))
}

async fn config(options: &Options) -> Result<Config> {
    let choice = KubeConfigOptions { context: options.context.clone(), ..Default::default() };
    let invalid = |error: kube::config::KubeconfigError| {
        Error::invalid(
            "kubeconfig",
            format!("{error}; give one with ?kubeconfig=, KUBECONFIG or ~/.kube/config"),
        )
    };
    if let Some(path) = &options.kubeconfig {
        let file = Kubeconfig::read_from(path).map_err(invalid)?;
        return Config::from_custom_kubeconfig(file, &choice).await.map_err(invalid);
    }
    // Whoever names a context means a kubeconfig. Else a pod uses the cluster it runs in.
    if options.context.is_none()
        && let Ok(config) = Config::incluster()
    {
        return Ok(config);
    }
    Config::from_kubeconfig(&choice).await.map_err(invalid)
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
