//! `tenure serve`, and commands that work against it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::orphans::Holder;
use crate::{Ran, ran};

/// A running server; killed when dropped.
pub(crate) struct Served {
    child: Child,
    pub(crate) url: String,
    out: BufReader<ChildStdout>,
}

impl Served {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_logging(arguments, Stdio::null())
    }

    pub(crate) fn start_logging(arguments: &[&str], log: impl Into<Stdio>) -> Self {
        let mut line = command(&["serve", "--listen", "127.0.0.1:0"]);
        Self::of(line.args(arguments).stderr(log))
    }

    fn of(line: &mut Command) -> Self {
        let mut child = line.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut out = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        let url = line.split([' ', ',']).find(|word| word.starts_with("http"));
        let url = url.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { child, url, out }
    }

    fn on(folder: &TempDir) -> Self {
        let store = format!("sqlite:{}", folder.path().join("t.db").display());
        Self::start(&["--store", &store])
    }

    /// What it answers to a request as it stands.
    fn answers(&self, request: &str) -> String {
        let address = self.url.strip_prefix("http://").expect("a plain address");
        let mut stream = std::net::TcpStream::connect(address).expect("a connection");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("an answer");
        said
    }

    /// A command against it.
    pub(crate) fn tenure(&self, arguments: &[&str]) -> Ran {
        ran(command(arguments).args(["--server", &self.url]).output().expect("the binary runs"))
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(&self.child, signal);
    }

    /// The exit code, once it has ended.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), signal).expect("a signal");
}

/// A command that knows of no store and no server.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(arguments);
    for name in ["TENURE_STORE", "TENURE_SERVER", "TENURE_BEARER", "TENURE_LOG"] {
        command.env_remove(name);
    }
    command
}

#[test]
fn what_the_file_can_say_flags_and_variables_can_say_too() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    let signed = ["--jwt-issuer", "https://id.example", "--jwt-audience", "tenure"];
    let keys = ["--jwt-hs256-secret-file", secret.to_str().unwrap()];
    let served = Served::start(&[&["--store", "memory:"][..], &signed, &keys].concat());
    served.tenure(&["lease", "ls"]).fails(6, "token");
    drop(served);
    let started = |set: &[(&str, &str)], arguments: &[&str]| {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--store", "memory:"];
        let mut line = command(&serve);
        line.args(arguments).envs(set.iter().copied());
        ran(line.output().expect("the binary runs"))
    };
    // A variable that makes no sense is named, and so is what is missing.
    started(&[("TENURE_LIMIT_REQUEST_TIMEOUT", "soon")], &[]).fails_on_line("30s, 5m");
    started(&[("TENURE_GRACE", "1")], &[]).fails_on_line("--grace");
    started(&[("TENURE_MTLS_CLIENT_CA", "ca.pem")], &[]).fails(6, "need TLS");
    started(&[("TENURE_JWT_ISSUER", "a")], &[]).fails(6, "--jwt-audience");
    started(&[], &["--limit-requests", "0"]).fails(6, "limit requests");
    let full = Served::start(&["--store", "memory:", "--limit-message-bytes", "65536"]);
    let head = "PUT /v1/objects/a/1 HTTP/1.1\r\nhost: tenure\r\nconnection: close";
    let body = "x".repeat(100_000);
    let said = full.answers(&format!("{head}\r\ncontent-length: 100000\r\n\r\n{body}"));
    assert!(said.starts_with("HTTP/1.1 413") && said.contains("65536"), "{said}");
}

#[test]
fn a_server_goes_by_its_hosts_name() {
    let mut line = command(&["serve", "--listen", "127.0.0.1:0", "--store", "memory:"]);
    // A service manager does not tell it.
    let served = Served::of(line.env_remove("HOSTNAME").stderr(Stdio::null()));
    let ready = "GET /readyz HTTP/1.1\r\nhost: tenure\r\nconnection: close\r\n\r\n";
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let told = served.answers(ready);
    assert!(told.contains(&format!("\"name\":\"{host}#")), "{told}");
}

#[test]
fn a_variable_that_is_empty_is_not_set() {
    let folder = tempfile::tempdir().unwrap();
    let mut names: Vec<String> = Vec::new();
    for manual in [&["--help"][..], &["run", "--help"], &["serve", "--help"]] {
        let help = ran_text(command(manual).output().unwrap());
        let word = |c: char| c != '_' && !c.is_ascii_alphanumeric();
        let variables = help.split(word).filter(|word| word.starts_with("TENURE_"));
        names.extend(variables.map(str::to_owned));
    }
    assert!(names.contains(&"TENURE_CA".into()) && names.contains(&"TENURE_LISTEN".into()));
    let with = |arguments: &[&str]| {
        let mut line = command(arguments);
        line.envs(names.iter().map(|name| (name, ""))).env("XDG_DATA_HOME", folder.path());
        ran(line.output().expect("the binary runs"))
    };
    with(&["run", "a/b", "--", "true"]).ok();
    // As far as the limit that is given.
    with(&["serve", "--limit-streams", "0"]).fails(6, "limit streams");
}

#[test]
fn every_command_works_against_a_server_and_the_store_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::on(&folder);
    let told = served.tenure(&["object", "put", "order", "1", "new"]).ok();
    assert!(told.contains("order/1 created"), "{told}");
    let lines = "echo \"$TENURE_SCOPE\"; \"$0\" lease ls --server \"$1\"";
    let program = env!("CARGO_BIN_EXE_tenure");
    let run = ["run", "a.b/c", "--name", "me", "--server", &served.url, "--", "sh", "-c", lines];
    let ran = ran(command(&run).args([program, &served.url]).output().unwrap()).ok();
    assert!(ran.starts_with("a.b/c\n") && ran.contains("me#"), "{ran}");
    served.tenure(&["slots", "resize", "a.b", "3"]).ok();
    assert!(served.tenure(&["slots", "ls", "a.b"]).ok().contains("0 of 3 slots"));
    served.tenure(&["elect", "leader", "a.b/c"]).fails(3, "nobody leads a.b/c");
    let capabilities = command(&["store", "capabilities", &served.url]).output().unwrap();
    assert!(ran_text(capabilities).contains("shared by"));
    // An orderly end, after which the file has it all.
    served.send(Signal::TERM);
    assert_eq!(served.wait(), Some(0));
    let mut rest = String::new();
    served.out.read_to_string(&mut rest).unwrap();
    let store = format!("sqlite:{}", folder.path().join("t.db").display());
    let get = ["object", "get", "order", "1", "--payload", "--store", &store];
    assert_eq!(ran_text(command(&get).output().unwrap()), "new");
}

#[test]
fn what_rests_on_a_look_works_against_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::on(&folder);
    let holder = Holder::on(&folder);
    let lease = holder.hold("a.b/c");
    let token = lease.token();
    let revoke = |token: u64| {
        served.tenure(&["lease", "revoke", "a.b/c", "--expect-token", &token.to_string()])
    };
    revoke(token + 1).fails(5, &format!("token {token} holds it now"));
    assert_eq!(revoke(token).ok(), "revoked a.b/c\n");
    let left = served.tenure(&["lease", "orphans", "a", "--children"]).ok();
    assert!(left.contains("a.b/c  worker#"), "{left}");
    assert!(served.tenure(&["lease", "reap", "a.b/c"]).ok().starts_with("reaped    a.b/c"));
    assert_eq!(served.tenure(&["lease", "orphans", "--json"]).ok(), "");
    served.tenure(&["slots", "resize", "a.b", "3"]).ok();
    let shown = served.tenure(&["slots", "ls", "a.b", "--json"]).ok();
    assert!(shown.contains("\"version\": 1"), "{shown}");
    let resize = ["slots", "resize", "a.b", "4", "--expect-version", "1"];
    served.tenure(&resize).ok();
    served.tenure(&resize).fails(4, "found version 2");
}

fn ran_text(output: std::process::Output) -> String {
    ran(output).ok()
}

#[test]
fn nobody_there_is_told_what_to_start() {
    let ls = ["lease", "ls", "--server", "http://127.0.0.1:1"];
    let told = ran(command(&ls).output().unwrap());
    told.fails(7, "no server on 127.0.0.1:1; start one with `tenure serve`");
    let both = command(&["lease", "ls"])
        .env("TENURE_SERVER", "http://x")
        .env("TENURE_STORE", "memory:")
        .output();
    ran(both.unwrap()).fails(6, "both TENURE_SERVER and TENURE_STORE are set");
    for (bad, named) in [("127.0.0.1:1", "127.0.0.1:1"), ("http://a,https://b", "https://b")] {
        let told = format!("invalid server address {named:?}");
        ran(command(&["lease", "ls", "--server", bad]).output().unwrap()).fails(6, &told);
        ran(command(&["lease", "ls"]).env("TENURE_SERVER", bad).output().unwrap()).fails(6, &told);
    }
}

#[test]
fn what_others_can_reach_needs_tls_and_tokens() {
    let open = ["serve", "--store", "memory:", "--listen", "0.0.0.0:0"];
    ran(command(&open).output().unwrap()).fails(6, "--tls-cert FILE --tls-key FILE");
    let behind = ["serve", "--store", "http://127.0.0.1:1"];
    ran(command(&behind).output().unwrap()).fails(6, "not another server");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenure.toml");
    std::fs::write(&file, "listn = \"127.0.0.1:0\"").unwrap();
    let misspelled = ["serve", "--config", file.to_str().unwrap()];
    ran(command(&misspelled).output().unwrap()).fails(6, "listn");
}

#[test]
fn a_token_that_was_made_is_let_in_and_does_what_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let may = ["--may", "leases:*:billing.*", "--may", "objects:read:*"];
    let made = command(&["token", "nightly"]).args(may).output().unwrap();
    let err = String::from_utf8_lossy(&made.stderr).into_owned();
    let token = err.lines().find(|line| line.starts_with("tnr_")).expect("a token").to_owned();
    let file = folder.path().join("tokens.toml");
    std::fs::write(&file, ran(made).ok()).unwrap();
    let served = Served::start(&["--store", "memory:", "--token-file", file.to_str().unwrap()]);
    served.tenure(&["lease", "ls"]).fails(6, "TENURE_BEARER");
    let with = |arguments: &[&str]| {
        let mut command = command(arguments);
        command.args(["--server", &served.url]).env("TENURE_BEARER", &token);
        ran(command.output().unwrap())
    };
    with(&["lease", "show", "billing.nightly/close"]).ok();
    with(&["lease", "show", "search.indexer/x"]).fails(6, "leases:read");
    with(&["object", "put", "order", "1", "x"]).fails(6, "objects:write");
    with(&["object", "ls", "order"]).ok();
    // What runs under a lease is told the lease's token, and still comes in with its own.
    let lines =
        "test \"$TENURE_TOKEN\" -gt 0 && \"$0\" lease show billing.nightly/close --server \"$1\"";
    let mut nested = command(&["run", "billing.nightly/close", "--quiet", "--name", "me"]);
    nested.args(["--server", &served.url, "--", "sh", "-c", lines]);
    nested.args([env!("CARGO_BIN_EXE_tenure"), &served.url]).env("TENURE_BEARER", &token);
    let told = ran(nested.output().unwrap()).ok();
    assert!(told.contains("held by   me#"), "{told}");
}

#[test]
fn a_watched_list_shows_what_changes() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::on(&folder);
    let mut watching = command(&["lease", "ls", "--watch", "--json", "--server", &served.url])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap());
    // The command ends when the list has shown its lease: it waits on this end of a pipe.
    let mut held =
        command(&["run", "a.b/c", "--name", "me", "--server", &served.url, "--quiet", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
    let mut line = String::new();
    while !line.contains("\"a.b/c\"") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the list ended");
    }
    assert!(line.contains("me#"), "{line}");
    drop(held.stdin.take());
    assert!(held.wait().unwrap().success());
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn a_command_is_stopped_in_time_when_its_server_freezes_and_goes_on_when_another_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Served::on(&folder), Served::on(&folder));
    let both = format!("{},{}", first.url, second.url);
    let start = |servers: &str, scope: &str| {
        let run = ["run", scope, "--ttl", "12s", "--server", servers, "--", "sh", "-c"];
        command(&run)
            .args(["echo started; exec sleep 300"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let begun = |child: &mut Child| {
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "started\n");
    };
    let (mut alone, mut safe) = (start(&first.url, "a.b/alone"), start(&both, "a.b/safe"));
    begun(&mut alone);
    begun(&mut safe);
    first.send(Signal::STOP);
    // It is stopped before its lease can be anybody else's, not when its server comes back.
    let lost = ran(alone.wait_with_output().unwrap());
    assert_eq!(lost.code, Some(5), "{}", lost.err);
    if safe.try_wait().unwrap().is_some() {
        panic!("it knows another server: {}", ran(safe.wait_with_output().unwrap()).err);
    }
    let holders = second.tenure(&["lease", "ls"]).ok();
    assert!(holders.contains("a.b/safe"), "{holders}");
    send(&safe, Signal::TERM);
    safe.wait().unwrap();
    first.send(Signal::CONT);
}
