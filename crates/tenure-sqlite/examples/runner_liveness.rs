//! Liveness of runners: whoever hears from a runner keeps its lease alive.
//!
//! Two controllers receive the messages of three runners, now one, now the other. Each message is an
//! upsert of the runner's lease. There is no "last seen" column and nobody compares clocks: a runner
//! that falls silent is gone when its lease expires, and everybody who watches is told.
//!
//! Run it with `cargo run -p tenure-sqlite --example runner_liveness`.

use std::time::Duration;

use futures::StreamExt;
use tenure::lease::{Coordinator, LeaseEvent, Metadata, Namespace, Owner, Scope};
use tenure::random::SystemRandom;
use tenure::store::Cause;
use tenure_sqlite::SqliteStore;

/// A runner that is not heard of for this long is taken for dead.
const LIFE: Duration = Duration::from_secs(2);
/// Between the messages of a runner.
const MESSAGE_EVERY: Duration = Duration::from_millis(100);
/// The example gives up after this long.
const PATIENCE: Duration = Duration::from_secs(30);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("runners.db");
    // Two controllers are two processes in real life; here they are two handles on one file.
    let controllers = [controller(&path, "controller-a")?, controller(&path, "controller-b")?];
    let namespace: Namespace = "runner".parse()?;
    let mut events = controllers[0].watch("runner/", None).await?;

    println!("Three runners report to two controllers.");
    let mut runners = Vec::new();
    for name in ["runner-1", "runner-2", "runner-3"] {
        runners.push(Owner::new(name, &SystemRandom)?);
    }
    let mut messages = 0;
    for round in 0..5 {
        for (n, runner) in runners.iter().enumerate() {
            hear_from(&controllers[(round + n) % 2], runner).await?;
            messages += 1;
        }
        tokio::time::sleep(MESSAGE_EVERY).await;
    }
    let mut tokens = Vec::new();
    for _ in &runners {
        if let LeaseEvent::Held(info) = next(&mut events).await? {
            println!("  {} is up (token {})", info.holder, info.token);
            tokens.push((info.holder.name().to_owned(), info.token));
        }
    }
    println!("{messages} messages, {} events: a runner that is up is no news.", tokens.len());
    assert_eq!(tokens.len(), 3, "each runner is told of once");

    println!("runner-2 falls silent. Nobody does anything about it …");
    let silent = runners.remove(1);
    let ended = async {
        loop {
            if let LeaseEvent::Ended { id, cause, last } = next(&mut events).await? {
                return Outcome::Ok((id, cause, last));
            }
        }
    };
    let others = async {
        loop {
            for runner in &runners {
                hear_from(&controllers[1], runner).await?;
            }
            tokio::time::sleep(MESSAGE_EVERY).await;
        }
        #[expect(unreachable_code, reason = "says what the loop fails with")]
        Outcome::Ok(())
    };
    let (id, cause, last) = tokio::select! {
        ended = ended => ended?,
        failed = others => return failed,
    };
    println!("… and yet everybody is told: the lease {id} ended ({cause:?}).");
    assert_eq!((id.as_str(), cause), ("runner/runner-2", Cause::Expired));
    assert_eq!(last.map(|info| info.holder), Some(silent), "and by whom it was held");
    let up = controllers[1].list(&namespace, false).await?;
    let names: Vec<&str> = up.iter().map(|info| info.holder.name()).collect();
    println!("Still up: {}.", names.join(", "));
    assert_eq!(names, ["runner-1", "runner-3"]);

    let again = Owner::new("runner-2", &SystemRandom)?;
    let token = hear_from(&controllers[0], &again).await?;
    println!("runner-2 is started again: token {token}, so nobody takes it for its former self.");
    assert!(tokens.iter().all(|(_, former)| *former < token), "tokens rise");
    Ok(())
}

fn controller(path: &std::path::Path, name: &str) -> Outcome<Coordinator> {
    let store = SqliteStore::open(path)?.into_store();
    Ok(Coordinator::builder(store).name(name).start()?)
}

/// What a controller does with each message of a runner's stream. Tells the token.
async fn hear_from(controller: &Coordinator, runner: &Owner) -> Outcome<u64> {
    let scope: Scope = format!("runner/{}", runner.name()).parse()?;
    let about = Metadata::from([("module".to_owned(), "time".to_owned())]);
    Ok(controller.keep_alive(&scope, runner, LIFE, about).await?.token)
}

async fn next(
    events: &mut (impl StreamExt<Item = tenure::Result<LeaseEvent>> + Unpin),
) -> Outcome<LeaseEvent> {
    let event = tokio::time::timeout(PATIENCE, events.next()).await?;
    Ok(event.ok_or("the watch ended")??)
}
