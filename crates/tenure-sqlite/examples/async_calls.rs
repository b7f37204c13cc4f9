//! Asynchronous calls: a call's result and the release of its lease are one transaction.
//!
//! Scheduled calls are objects. Whoever gets the lease of a call executes it, and the commit that ends
//! the lease also writes the result: there is no instant at which the call is done but still held, or
//! free but not done. A worker that dies leaves something to reap, and reaping puts its call back.
//!
//! Run it with `cargo run -p tenure-sqlite --example async_calls`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::lease::{
    Coordinator, HookContext, Hooks, Lease, LeaseInfo, LeaseRef, Namespace, ReapHook, Terms,
};
use tenure::store::{Expect, Put, Query, Store};
use tenure::{Error, Key};
use tenure_sqlite::SqliteStore;

/// A worker that dies keeps its call for no longer than this.
const LIFE: Duration = Duration::from_millis(1500);
/// The worker looks for work this often, with a pause in between.
const ROUNDS: u32 = 600;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What happens to a call along with its lease.
struct CallHooks;

#[async_trait]
impl Hooks for CallHooks {
    async fn will_insert(
        &self,
        lease: LeaseRef<'_>,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        move_on(lease.id, "scheduled", "executing", draft).await
    }

    async fn will_release_ok(
        &self,
        lease: LeaseRef<'_>,
        value: &[u8],
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        let result = format!("done: {}", String::from_utf8_lossy(value));
        move_on(lease.id, "executing", &result, draft).await
    }
}

#[async_trait]
impl ReapHook for CallHooks {
    async fn will_reap(
        &self,
        lease: &LeaseInfo,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        println!("  {} died with {}; it goes back", lease.holder.name(), lease.id);
        move_on(&lease.id, "executing", "scheduled", draft).await
    }
}

/// Adds the next state of a call to the commit, provided that it is in the one expected. If somebody
/// changes it in between, the commit fails as a whole and the hook is asked again.
async fn move_on(
    lease: &str,
    from: &str,
    to: &str,
    draft: &mut HookContext<'_>,
) -> tenure::Result<()> {
    let key = Key::new("call", lease.rsplit('/').next().unwrap_or_default());
    let call = draft.store.get(&key).await?.ok_or_else(|| Error::NotFound { key: key.clone() })?;
    if call.payload != from.as_bytes() {
        let state = String::from_utf8_lossy(&call.payload).into_owned();
        return Err(Error::invalid(format!("call {}", key.id), format!("it is {state}")));
    }
    let put = Put::new(key, to.to_owned()).expect(Expect::Revision(call.revision));
    draft.commit = std::mem::take(&mut draft.commit).put(put);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("doomed") {
        return doomed(&args.next().unwrap_or_default()).await;
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("calls.db").to_string_lossy().into_owned();
    let worker = worker(&path, "worker-1")?;
    let store = worker.store().clone();
    for id in ["greet", "charge", "notify"] {
        store.commit(Put::new(Key::new("call", id), "scheduled")).await?;
    }
    println!("Three calls are scheduled.");

    // Another process takes one of them and dies in the middle of it.
    let mut program = Command::new(std::env::current_exe()?);
    program.args(["doomed", &path]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn()?;
    let output = child.stdout.take().ok_or("the worker has no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    println!("  {}\n  doomed is killed", line.trim());
    assert_eq!(state(&store, "charge").await?, "executing", "nobody knows yet");

    let mut attempts = 0;
    let namespaces: [Namespace; 1] = ["async.call".parse()?];
    for _ in 0..ROUNDS {
        worker.reap(&namespaces, false, &CallHooks).await?;
        for call in store.list_all(&Query::new("call")).await? {
            if let Some(lease) = take(&worker, &call.key.id).await? {
                attempts += 1;
                println!("  worker-1 executes {} (token {})", call.key.id, lease.token());
                let result = format!("{} by worker-1", call.key.id);
                lease.release_ok(result.as_bytes()).await?;
                // One commit: whoever sees the lease gone sees the result.
                assert_eq!(state(&store, &call.key.id).await?, format!("done: {result}"));
            }
        }
        if attempts == 3 {
            println!("All three are done, {attempts} by worker-1, none of them twice.");
            assert!(worker.list(&namespaces[0], true).await?.is_empty(), "no lease is left");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err("the calls were not done in time".into())
}

fn worker(path: &str, name: &str) -> Outcome<Coordinator> {
    let store = SqliteStore::open(path)?.into_store();
    Ok(Coordinator::builder(store).name(name).start()?)
}

/// The lease of a call, unless it is being executed or done.
async fn take(worker: &Coordinator, id: &str) -> Outcome<Option<Lease>> {
    let terms = Terms::new().ttl(LIFE).reapable().hooks(Arc::new(CallHooks));
    match worker.acquire(&format!("async.call/{id}").parse()?, &terms).await {
        Ok(lease) => Ok(Some(lease)),
        // The first is said by the lease, the second by our hook.
        Err(Error::Held { .. } | Error::Invalid { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn state(store: &Store, id: &str) -> Outcome<String> {
    let call = store.get(&Key::new("call", id)).await?.ok_or("the call is gone")?;
    Ok(String::from_utf8_lossy(&call.payload).into_owned())
}

/// A worker that takes a call and never comes back.
async fn doomed(path: &str) -> Outcome<()> {
    let worker = worker(path, "doomed")?;
    let lease = take(&worker, "charge").await?.ok_or("somebody else was quicker")?;
    println!("doomed executes charge (token {})", lease.token());
    // Until it is killed; or until its input ends, should whoever started it die first.
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}
