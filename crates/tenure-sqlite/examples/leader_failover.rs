//! A leader that is killed, and a follower that takes over under a greater token.
//!
//! Three real processes campaign; one leads. It is killed without warning, so it cannot resign: its
//! lease runs out, and the next candidate leads. What the dead leader may still have had on its way is
//! stopped by its token.
//!
//! Run it with `cargo run -p tenure-sqlite --example leader_failover`.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures::StreamExt;
use tenure::lease::{Coordinator, Election, LeaseInfo, Scope, Terms, lease_key};
use tenure::store::{Commit, Fence, Put};
use tenure::{Error, Key};
use tenure_sqlite::SqliteStore;

/// After a crash nobody leads for about this long.
const LIFE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("candidate") {
        return candidate(&args.next().unwrap_or_default(), &args.next().unwrap_or_default()).await;
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("election.db").to_string_lossy().into_owned();
    let (coordinator, election) = join(&path, "observer")?;
    let mut leaders = election.observe().await?;
    let mut candidates = BTreeMap::new();
    for name in ["alice", "bob", "carol"] {
        candidates.insert(name.to_owned(), Candidate::start(name, &path)?);
    }
    println!("Three processes campaign: alice, bob and carol.");

    let mut former: Option<LeaseInfo> = None;
    for _ in 0..3 {
        let leader = next_leader(&mut leaders).await?;
        let name = leader.holder.name().to_owned();
        println!("{name} leads (token {}, process {}).", leader.token, leader.metadata["pid"]);
        if let Some(former) = &former {
            assert!(leader.token > former.token, "a later leader has a greater token");
            // What the dead leader might have sent: its write, under its token.
            let late = Put::new(Key::new("setting", "motd"), "written by a ghost");
            let fence = Fence::new(lease_key(&scope()?), former.token);
            match coordinator.store().commit(Commit::from(late).fenced_by(fence)).await {
                Err(Error::Lost { token, .. }) => {
                    println!("  A late write under token {token} is refused.");
                }
                other => return Err(format!("a ghost's write was answered: {other:?}").into()),
            }
        }
        let mut candidate = candidates.remove(&name).ok_or("the leader is none of ours")?;
        if candidates.is_empty() {
            println!("{name} is the last one, and is let go in peace.");
            candidate.resign()?;
            return Ok(());
        }
        println!("  {name} is killed.");
        candidate.0.kill()?;
        candidate.0.wait()?;
        former = Some(leader);
    }
    Err("three leaders, and still candidates left".into())
}

fn scope() -> tenure::Result<Scope> {
    "example.election/leader".parse()
}

fn join(path: &str, name: &str) -> Outcome<(Coordinator, Election)> {
    let store = SqliteStore::open(path)?.into_store();
    let coordinator = Coordinator::builder(store).name(name).start()?;
    let election = Election::new(&coordinator, scope()?);
    Ok((coordinator, election))
}

/// The next leader that is told of.
async fn next_leader(
    leaders: &mut (impl StreamExt<Item = tenure::Result<Option<LeaseInfo>>> + Unpin),
) -> Outcome<LeaseInfo> {
    loop {
        let told = tokio::time::timeout(PATIENCE, leaders.next()).await;
        match told?.ok_or("the watch ended")?? {
            Some(leader) => return Ok(leader),
            None => println!("Nobody leads …"),
        }
    }
}

/// A process that campaigns; killed when dropped.
struct Candidate(Child);

impl Candidate {
    fn start(name: &str, path: &str) -> Outcome<Self> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        Ok(Self(command.args(["candidate", name, path]).stdin(Stdio::piped()).spawn()?))
    }

    /// The end of its input is its cue to resign.
    fn resign(&mut self) -> Outcome<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait()?;
        assert!(status.success(), "it ended with {status}");
        Ok(())
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One of the processes: waits until it leads, leads until its input ends, resigns.
async fn candidate(name: &str, path: &str) -> Outcome<()> {
    let (_coordinator, election) = join(path, name)?;
    let pid = std::process::id().to_string();
    let term = election.campaign(Terms::new().ttl(LIFE).metadata("pid", pid)).await?;
    // Leading is whatever needs exactly one of us. This thread may block: renewals have their own.
    std::io::stdin().read_line(&mut String::new())?;
    Ok(election.resign(term).await?)
}
