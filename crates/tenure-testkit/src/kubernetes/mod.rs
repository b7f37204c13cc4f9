//! A stand-in for a Kubernetes API server, as far as Leases go.
//!
//! No API server is to be had where these tests run, so this one honours what correctness hangs on:
//! resourceVersions that rise over all objects, uids, both reasons of a 409, PUTs that create, watches
//! with bookmarks, compaction with 410, lists in pages, namespaces that have to be there, finalizers,
//! managers of fields, and a bearer token. It also breaks on purpose.
//! Tests that need none of that run on a real cluster just as well.

mod faults;
mod server;
mod state;
mod tls;
mod validate;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

pub use faults::{Fault, Seen};
use server::Server;
use tls::Tls;

const TOKEN: &str = "a-private-server";

/// A stand-in that belongs to one test process. It ends with the value, or with the process.
pub struct ApiServer {
    server: Arc<Server>,
    folder: TempDir,
    address: std::net::SocketAddr,
    tls: Option<Tls>,
    runtime: Option<Runtime>,
}

impl ApiServer {
    /// Starts one on a free port.
    pub fn start() -> Result<Self> {
        Self::start_as(None)
    }

    /// The same over TLS, with a certificate by an authority that its kubeconfig names. Whoever shows
    /// a certificate by that authority needs no token.
    pub fn start_with_tls() -> Result<Self> {
        Self::start_as(Some(Tls::new()?))
    }

    fn start_as(tls: Option<Tls>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("stand-in-api")
            .enable_all()
            .build()
            .context("starting the stand-in's runtime")?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .context("finding a port for the stand-in")?;
        let address = listener.local_addr().context("reading the stand-in's port")?;
        let server = Arc::new(Server::new(TOKEN));
        let serving = Arc::clone(&server);
        let acceptor = tls.as_ref().map(|tls| tls.acceptor.clone());
        runtime.spawn(async move {
            // Of a listener that is there already; if that fails, nobody will be answered.
            if let Ok(listener) = TcpListener::from_std(listener) {
                server::serve(serving, listener, acceptor).await;
            }
        });
        let folder = tempfile::Builder::new().prefix("tenure-kubernetes-").tempdir()?;
        let this = Self { server, folder, address, tls, runtime: Some(runtime) };
        std::fs::write(this.kubeconfig(), this.kubeconfig_with(TOKEN, "default"))?;
        Ok(this)
    }

    /// A kubeconfig for it. Its one context has the namespace `default`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// The text of a kubeconfig with this token and namespace.
    pub fn kubeconfig_with(&self, token: &str, namespace: &str) -> String {
        self.kubeconfig_of(&format!("token: {token}"), namespace)
    }

    /// What a kubeconfig says of a user with a client certificate; `None` without TLS.
    pub fn certificate_user(&self) -> Option<String> {
        let tls = self.tls.as_ref()?;
        Some(format!(
            "client-certificate-data: {}\n    client-key-data: {}",
            tls.client_certificate, tls.client_key
        ))
    }

    /// The text of a kubeconfig with this user and namespace.
    pub fn kubeconfig_of(&self, user: &str, namespace: &str) -> String {
        let address = self.address;
        let server = match &self.tls {
            Some(tls) => {
                format!("https://{address}\n    certificate-authority-data: {}", tls.authority)
            }
            None => format!("http://{address}"),
        };
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: stand-in\n\
             clusters:\n- name: stand-in\n  cluster:\n    server: {server}\n\
             users:\n- name: test\n  user:\n    {user}\n\
             contexts:\n- name: stand-in\n  context:\n    cluster: stand-in\n    user: test\n    \
             namespace: {namespace}\n"
        )
    }

    /// Where it listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// Writes what a pod finds of its service account into a folder. It needs TLS.
    pub fn write_service_account(&self, folder: &Path, namespace: &str) -> Result<()> {
        let tls = self.tls.as_ref().context("a service account is for a server with TLS")?;
        std::fs::write(folder.join("ca.crt"), &tls.authority_pem)?;
        std::fs::write(folder.join("namespace"), namespace)?;
        std::fs::write(folder.join("token"), TOKEN)?;
        Ok(())
    }

    /// From now on this token counts and the one before does not.
    pub fn rotate_token(&self, token: &str) {
        self.server.welcome(token);
    }

    /// Does this to the next request of that method; `WATCH` is a method here.
    pub fn break_next(&self, method: &str, fault: Fault) {
        self.server.faults().next.push_back((method.into(), fault));
    }

    /// Forbids all requests of this method from now on; `WATCH` is a method here.
    pub fn forbid(&self, method: &str) {
        self.server.faults().forbidden.push(method.into());
    }

    /// Breaks every connection at once, or stops doing so.
    pub fn go_away(&self, away: bool) {
        self.server.faults().away = away;
        if away {
            self.server.cut_watches();
        }
    }

    /// Ends all running watches without a word.
    pub fn cut_watches(&self) {
        self.server.cut_watches();
    }

    /// How many bookmarks were sent so far, to all watches.
    pub fn bookmarks(&self) -> u64 {
        self.server.bookmarks.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Forgets all history. Watches that are not up to date are told 410.
    pub fn compact(&self) {
        self.server.state().compact();
        self.server.nudge();
    }

    /// Writes something and forgets all history at once, so that no running watch is up to date. They
    /// are cut, and told 410 when they come back: by an event or by the status of the answer.
    pub fn outrun_watches(&self, by_event: bool) {
        self.server.faults().gone_by_event = by_event;
        let mut state = self.server.state();
        state.write_elsewhere();
        state.compact();
        drop(state);
        self.server.cut_watches();
    }

    /// Writes something that is no Lease.
    pub fn write_elsewhere(&self) {
        self.server.state().write_elsewhere();
    }

    /// Every request so far, and forgets them.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.server.faults().seen)
    }

    /// A Lease as it is, read behind everybody's back; null if there is none.
    pub fn lease(&self, namespace: &str, name: &str) -> Value {
        let (code, lease) = self.server.state().get(namespace, name);
        if code == 200 { lease } else { Value::Null }
    }

    /// The names of all Leases in a namespace.
    pub fn names(&self, namespace: &str) -> Vec<String> {
        self.server.state().names(namespace)
    }

    /// Makes a namespace that Leases can be in. `default` is there already.
    pub fn create_namespace(&self, namespace: &str) {
        self.server.state().create_namespace(namespace);
    }

    /// What `kubectl replace` would do with this Lease: the status, and the body.
    pub fn replace(&self, namespace: &str, name: &str, lease: Value) -> (u16, Value) {
        let answer = self.server.state().replace(namespace, name, lease, "kubectl");
        self.server.nudge();
        answer
    }

    /// What `kubectl create` would do with this Lease.
    pub fn create(&self, namespace: &str, lease: Value) -> (u16, Value) {
        let answer = self.server.state().create(namespace, lease, "kubectl");
        self.server.nudge();
        answer
    }

    /// What `kubectl delete` would do.
    pub fn delete(&self, namespace: &str, name: &str) -> u16 {
        let (code, _) = self.server.state().delete(namespace, name, &Value::Null);
        self.server.nudge();
        code
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("address", &self.address).finish_non_exhaustive()
    }
}
