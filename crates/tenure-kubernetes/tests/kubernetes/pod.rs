//! A program in a pod: the API server is in its environment and its credentials are in a folder, where
//! the token is replaced while it runs.
//!
//! The environment belongs to a process, so each of these programs is one: this binary, started again.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tenure::lease::LEASE;
use tenure::store::Query;
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tenure_testkit::ApiServer;

use crate::common::{
    OrFail, Outcome, connect, coordinator, ensure, ensure_eq, lease, scope, standin, terms,
};

/// Makes this binary a program in a pod, which does what it is told line by line.
pub(crate) const POD: &str = "--in-a-pod";
/// The namespace that the service account names.
const NAMESPACE: &str = "default";

pub(crate) fn add(trials: &mut Trials) {
    trials.test("kubernetes::a_pod_uses_its_service_account", account);
    trials.test("kubernetes::a_rotated_token_is_taken_while_running", rotated);
    trials.test("kubernetes::an_account_that_is_not_whole_is_named", missing);
}

/// The program: acquires, and then lists and renews for each line that it reads.
pub(crate) fn inside(url: &str) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let done = runtime.map(|runtime| runtime.block_on(hold(url)));
    if let Ok(Err(failure)) = done {
        println!("failed {failure}");
    }
}

async fn hold(url: &str) -> Outcome {
    let store = connect(url).await?;
    let held = coordinator(&store, "pod")?.acquire(&scope("jobs/x")?, &terms(30)).await?;
    println!("held");
    for line in std::io::stdin().lines() {
        line.or_fail()?;
        ensure_eq!(store.list(&Query::new(LEASE)).await?.objects.len(), 1);
        held.renew().await?;
        println!("renewed");
    }
    Ok(held.release().await?)
}

/// One that runs. It ends when it is dropped.
struct Pod {
    child: Child,
    tell: Option<ChildStdin>,
    told: BufReader<ChildStdout>,
}

impl Pod {
    /// Starts one with this environment.
    fn start(url: &str, environment: &[(&str, String)]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe().or_fail()?);
        // Whatever cluster the tests are run from is not meant.
        for name in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG", "HOME"] {
            command.env_remove(name);
        }
        command.envs(environment.iter().map(|(name, value)| (name, value))).args([POD, url]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().or_fail()?;
        let told = BufReader::new(child.stdout.take().ok_or("no output")?);
        let tell = child.stdin.take();
        Ok(Self { child, tell, told })
    }

    /// The next line that it prints.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.told.read_line(&mut line).or_fail()?;
        Ok(line.trim_end().to_owned())
    }

    /// Has it renew.
    fn renew(&mut self) -> Result<String, Failure> {
        self.tell.as_mut().ok_or("it was told to end")?.write_all(b"go\n").or_fail()?;
        self.line()
    }

    /// Has it release and end; what it said then.
    fn end(&mut self) -> Result<String, Failure> {
        self.tell = None;
        let line = self.line()?;
        self.child.wait().or_fail()?;
        Ok(line)
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // One that has ended already is just that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn environment(server: &ApiServer) -> [(&'static str, String); 2] {
    let address = server.address();
    [
        ("KUBERNETES_SERVICE_HOST", address.ip().to_string()),
        ("KUBERNETES_SERVICE_PORT", address.port().to_string()),
    ]
}

fn url(folder: &Path) -> String {
    format!("kubernetes://?serviceaccount={}", folder.display())
}

async fn account() -> Outcome {
    let server = ApiServer::start_with_tls().or_fail()?;
    let folder = tempfile::tempdir().or_fail()?;
    server.write_service_account(folder.path(), NAMESPACE).or_fail()?;
    let mut pod = Pod::start(&url(folder.path()), &environment(&server))?;
    ensure_eq!(pod.line()?, "held");
    ensure!(!lease(&server, "jobs.x").is_null(), "it is not in the account's namespace");
    ensure_eq!(pod.end()?, "");
    // Somebody else's certificates are not trusted, and get no token.
    let other = ApiServer::start_with_tls().or_fail()?;
    let mut pod = Pod::start(&url(folder.path()), &environment(&other))?;
    let line = pod.line()?;
    ensure!(line.contains("certificate"), "{line}");
    ensure_eq!(other.take_seen().len(), 0);
    Ok(())
}

async fn rotated() -> Outcome {
    let server = ApiServer::start_with_tls().or_fail()?;
    let folder = tempfile::tempdir().or_fail()?;
    server.write_service_account(folder.path(), NAMESPACE).or_fail()?;
    let mut pod = Pod::start(&url(folder.path()), &environment(&server))?;
    ensure_eq!(pod.line()?, "held");
    ensure_eq!(pod.renew()?, "renewed");
    // As the kubelet does it: the new one takes the place of the old in one step.
    for token in ["second", "third\n"] {
        let next = folder.path().join("next");
        std::fs::write(&next, token).or_fail()?;
        std::fs::rename(&next, folder.path().join("token")).or_fail()?;
        server.rotate_token(token.trim());
        ensure_eq!(pod.renew()?, "renewed");
    }
    // While there is none, the last one is shown.
    std::fs::remove_file(folder.path().join("token")).or_fail()?;
    ensure_eq!(pod.renew()?, "renewed");
    // One that does not count any more is told as what it is.
    server.rotate_token("fourth");
    let line = pod.renew()?;
    ensure!(line.starts_with("failed") && line.contains("credentials"), "{line}");
    Ok(())
}

async fn missing() -> Outcome {
    let server = ApiServer::start_with_tls().or_fail()?;
    let folder = tempfile::tempdir().or_fail()?;
    let here = folder.path().display().to_string();
    let said = |url: &str, environment: &[(&str, String)]| Pod::start(url, environment)?.line();
    let pod = environment(&server);
    for file in ["token", "namespace", "ca.crt"] {
        server.write_service_account(folder.path(), NAMESPACE).or_fail()?;
        std::fs::remove_file(folder.path().join(file)).or_fail()?;
        let line = said(&url(folder.path()), &pod)?;
        for part in [&*format!("{here}/{file}"), "No such file", "automountServiceAccountToken"] {
            ensure!(line.contains(part), "{line:?} does not say {part:?}");
        }
    }
    let line = said(&url(&folder.path().join("nowhere")), &pod)?;
    ensure!(line.contains("nowhere/token") && line.contains("automount"), "{line}");
    server.write_service_account(folder.path(), NAMESPACE).or_fail()?;
    std::fs::write(folder.path().join("ca.crt"), "no certificate").or_fail()?;
    let line = said(&url(folder.path()), &pod)?;
    ensure!(line.contains("certificate") || line.contains("ca.crt"), "{line}");
    // Outside of a pod, and in one that was given no account.
    let line = said(&url(folder.path()), &[])?;
    ensure!(line.contains("KUBERNETES_SERVICE_HOST is not set"), "{line}");
    let line = said("kubernetes://", &pod)?;
    ensure!(
        line.contains("?kubeconfig=") && line.contains("automountServiceAccountToken"),
        "{line}"
    );
    // A kubeconfig that is named is used, in a pod as well.
    let plain = standin();
    let named = crate::common::url(&plain.kubeconfig(), NAMESPACE);
    ensure_eq!(said(&named, &pod)?, "held");
    Ok(())
}
