//! Where a test runs that needs no faults of the server: on a stand-in of its own, or on a real cluster.
//!
//! Leases are read and changed behind the store's back as anybody would, with the credentials of the
//! kubeconfig. The names of all Leases of a test begin with a prefix of its own, and are deleted behind
//! it: the same on the stand-in, so that what runs on a real cluster has run before.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tenure::store::Store;
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tenure_kubernetes::Options;

use crate::common::{OrFail, Outcome, open_with, real_kubeconfig, standin};

/// What the names of all Leases begin with that tests leave or look at on a real cluster.
const PREFIX: &str = "tenure-test-";

/// Adds a test for the stand-in, and for the real cluster if there is one.
pub(crate) fn everywhere<F>(trials: &mut Trials, name: &str, test: fn(Cluster) -> F)
where
    F: Future<Output = Outcome> + 'static,
{
    trials.test(format!("kubernetes::{name}"), move || async move {
        let server = standin();
        on(server.kubeconfig(), test).await
    });
    if let Some(kubeconfig) = real_kubeconfig() {
        trials.test(format!("cluster::{name}"), move || on(kubeconfig, test));
    }
}

async fn on<F: Future<Output = Outcome>>(kubeconfig: PathBuf, test: fn(Cluster) -> F) -> Outcome {
    let cluster = Cluster::open(kubeconfig).await?;
    let outcome = test(cluster.clone()).await;
    cluster.tidy().await?;
    outcome
}

/// Deletes what the suite left on a real cluster, once all of it has run. Otherwise every run would list
/// the idle Leases of all runs before, and take longer for it.
pub(crate) struct LeftTidy(pub(crate) PathBuf);

impl Drop for LeftTidy {
    fn drop(&mut self) {
        let kubeconfig = self.0.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let tidied = runtime.map(|runtime| {
            runtime.block_on(async {
                let mut cluster = Cluster::open(kubeconfig).await?;
                cluster.prefix = PREFIX.into();
                cluster.tidy().await
            })
        });
        if let Ok(Err(failure)) = tidied {
            eprintln!("Leases were left on the cluster: {failure}");
        }
    }
}

/// One of them.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: kube::Client,
    kubeconfig: PathBuf,
    namespace: String,
    prefix: String,
}

impl Cluster {
    async fn open(kubeconfig: PathBuf) -> Result<Self, Failure> {
        static TESTS: AtomicU32 = AtomicU32::new(0);
        let file = Kubeconfig::read_from(&kubeconfig).or_fail()?;
        let choice = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &choice).await.or_fail()?;
        let namespace = config.default_namespace.clone();
        let test = TESTS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}{}-{test}-", std::process::id());
        let client = kube::Client::try_from(config).or_fail()?;
        Ok(Self { client, kubeconfig, namespace, prefix })
    }

    /// Options for a store of this test.
    pub(crate) fn options(&self) -> Options {
        let options = Options::new().kubeconfig(&self.kubeconfig).namespace(&self.namespace);
        options.prefix(&self.prefix)
    }

    /// The same with more behind the prefix.
    pub(crate) fn options_with_prefix(&self, prefix: &str) -> Options {
        self.options().prefix(format!("{}{prefix}", self.prefix))
    }

    pub(crate) async fn store(&self) -> tenure::Result<Store> {
        open_with(self.options()).await
    }

    /// A Lease as it is; null if there is none.
    pub(crate) async fn lease(&self, name: &str) -> Result<Value, Failure> {
        match self.ask("GET", Some(name), Value::Null).await? {
            (200, lease) => Ok(lease),
            (404, _) => Ok(Value::Null),
            other => Err(Failure::new(format!("reading {name}: {other:?}"))),
        }
    }

    /// What `kubectl create` does with this Lease: the status.
    pub(crate) async fn create(&self, mut lease: Value) -> Result<u16, Failure> {
        let name = lease["metadata"]["name"].as_str().unwrap_or_default();
        lease["metadata"]["name"] = format!("{}{name}", self.prefix).into();
        lease["apiVersion"] = "coordination.k8s.io/v1".into();
        lease["kind"] = "Lease".into();
        Ok(self.ask("POST", None, lease).await?.0)
    }

    /// What `kubectl replace` does with this Lease.
    pub(crate) async fn replace(&self, name: &str, lease: Value) -> Result<u16, Failure> {
        Ok(self.ask("PUT", Some(name), lease).await?.0)
    }

    async fn ask(
        &self,
        method: &str,
        name: Option<&str>,
        body: Value,
    ) -> Result<(u16, Value), Failure> {
        let mut path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
        if let Some(name) = name {
            path = format!("{path}/{}{name}", self.prefix);
        }
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json").body(body).or_fail()?;
        match self.client.request::<Value>(request).await {
            Ok(answer) => Ok((if method == "POST" { 201 } else { 200 }, answer)),
            Err(kube::Error::Api(status)) => Ok((status.code, json!(status.message))),
            Err(error) => Err(Failure::new(error.to_string())),
        }
    }

    /// What `kubectl delete` does with it.
    pub(crate) async fn delete(&self, name: &str) -> Result<u16, Failure> {
        Ok(self.ask("DELETE", Some(name), Value::Null).await?.0)
    }

    /// Deletes what the test left.
    async fn tidy(&self) -> Outcome {
        let (_, all) = self.ask("GET", None, Value::Null).await?;
        for lease in all["items"].as_array().into_iter().flatten() {
            let name = lease["metadata"]["name"].as_str().unwrap_or_default();
            if let Some(name) = name.strip_prefix(&self.prefix) {
                self.ask("DELETE", Some(name), Value::Null).await?;
            }
        }
        Ok(())
    }
}
