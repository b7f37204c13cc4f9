//! What the tests share: stand-ins, and short ways to say things.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tenure::Result;
use tenure::lease::{Coordinator, Scope, Terms};
use tenure::store::Store;
use tenure_conformance::Failure;
pub(crate) use tenure_conformance::OrFail;
use tenure_kubernetes::{KubernetesStore, Options};
use tenure_testkit::ApiServer;

pub(crate) type Outcome = Result<(), Failure>;

macro_rules! ensure_eq {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) if left != right => {
                let text = format!("{}: {left:?} instead of {right:?}", stringify!($left));
                return Err(tenure_conformance::Failure::new(text));
            }
            _ => {}
        }
    };
}
pub(crate) use ensure_eq;

macro_rules! ensure {
    ($met:expr, $($why:tt)+) => {
        if !$met {
            return Err(tenure_conformance::Failure::new(format!($($why)+)));
        }
    };
}
pub(crate) use ensure;

/// The namespace of the cluster that tests use which have a stand-in of their own.
pub(crate) const NAMESPACE: &str = "default";

pub(crate) fn standin() -> ApiServer {
    // Without a server there is nothing to test, and that is a failure.
    ApiServer::start().unwrap_or_else(|error| panic!("{error:#}"))
}

pub(crate) fn url(kubeconfig: &Path, namespace: &str) -> String {
    format!("kubernetes://{namespace}?kubeconfig={}", kubeconfig.display())
}

/// A real cluster to run on as well: the namespace of the kubeconfig's context, with a prefix.
pub(crate) fn real_cluster() -> Option<String> {
    let path = real_kubeconfig()?;
    Some(format!("kubernetes://?kubeconfig={}&prefix=tenure-test-", path.display()))
}

/// How to reach it.
pub(crate) fn real_kubeconfig() -> Option<PathBuf> {
    std::env::var_os("TENURE_TEST_KUBECONFIG").map(PathBuf::from)
}

pub(crate) async fn connect(url: &str) -> Result<Store> {
    Ok(KubernetesStore::connect(url).await?.into_store())
}

pub(crate) fn options(server: &ApiServer) -> Options {
    Options::new().kubeconfig(server.kubeconfig()).namespace(NAMESPACE)
}

pub(crate) async fn open(server: &ApiServer) -> Result<Store> {
    open_with(options(server)).await
}

pub(crate) async fn open_with(options: Options) -> Result<Store> {
    Ok(KubernetesStore::connect_with(options).await?.into_store())
}

pub(crate) fn coordinator(store: &Store, name: &str) -> Result<Coordinator> {
    Coordinator::builder(store.clone()).name(name).start()
}

pub(crate) fn scope(text: &str) -> Result<Scope> {
    text.parse()
}

pub(crate) fn terms(seconds: u64) -> Terms {
    Terms::new().ttl(Duration::from_secs(seconds))
}

/// A Lease behind everybody's back.
pub(crate) fn lease(server: &ApiServer, name: &str) -> Value {
    server.lease(NAMESPACE, name)
}

/// A field of the spec.
pub(crate) fn spec<'a>(lease: &'a Value, field: &str) -> &'a Value {
    &lease["spec"][field]
}

/// Waits for what is bound to happen.
pub(crate) async fn soon<T>(what: &str, happening: impl Future<Output = T>) -> Result<T, Failure> {
    let patience = Duration::from_secs(10);
    let happened = tokio::time::timeout(patience, happening).await;
    happened.map_err(|_| Failure::new(format!("{what} did not come within {patience:?}")))
}
