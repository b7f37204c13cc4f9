//! Groups that cannot go in one exchange after all: the server's log has nothing to say about them.
//!
//! An operator reads an `ERROR` there as one, so these tests have a server of their own and look at
//! all that it logged.

use std::time::Duration;

use futures::future::try_join_all;
use tenure::Error;
use tenure::store::{Commit, Expect, Store, Touch};
use tenure_conformance::{Failure, ensure};
use tenure_testkit::Postgres;

use super::{add_up, known, operator, result};
use crate::common::{OrFail, Outcome, connect, key, put};

const LIFE: Duration = Duration::from_secs(600);

fn lease(id: &str) -> Commit {
    let put = put(id, "held").ttl(LIFE).expect(Expect::Absent);
    Commit::from(put).check(key(format!("{id}#")), Expect::Absent)
}

fn release(id: &str, token: u64) -> Commit {
    Commit::new().delete(key(id), Expect::Token(token))
}

pub(super) async fn refused() -> Outcome {
    let server = Postgres::start().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let (a, b, operator) = (connect(&url).await?, connect(&url).await?, operator(&url).await?);
    b.commit(put("marked#", "theirs")).await?;
    b.commit(put("held", "theirs").ttl(LIFE)).await?;
    b.commit(put("named", "theirs").name("name")).await?;
    // What it asked the server for last must not be taken for ours.
    b.close().await;
    let b = connect(&url).await?;
    // What is there, and this process does not know of.
    known(&a, &operator, "x").await?;
    let marked = a.commit(lease("marked")).await;
    ensure!(matches!(marked, Err(Error::AlreadyExists { .. })), "{marked:?}");
    known(&a, &operator, "x").await?;
    let held = a.commit(lease("held")).await;
    ensure!(matches!(held, Err(Error::AlreadyExists { .. })), "{held:?}");
    known(&a, &operator, "x").await?;
    let named = a.commit(put("other", "ours").name("name").expect(Expect::Absent)).await;
    ensure!(matches!(named, Err(Error::NameTaken { .. })), "{named:?}");
    known(&a, &operator, "x").await?;
    let beside = Commit::from(put("x", "ours")).check(key("marked#"), Expect::Absent);
    let beside = a.commit(beside).await;
    ensure!(matches!(beside, Err(Error::AlreadyExists { .. })), "{beside:?}");
    // A life that was over sooner than this process knows.
    known(&a, &operator, "x").await?;
    let taken = result(&a.commit(lease("short")).await?)?;
    let touch =
        Touch { key: key("short"), revision: taken.revision, ttl: Duration::from_millis(1) };
    b.touch(vec![touch]).await?.remove(0)?;
    let late = a.commit(release("short", taken.token)).await;
    ensure!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    let taken = {
        known(&a, &operator, "x").await?;
        result(&a.commit(lease("over")).await?)?
    };
    let over = "update objects set expires_at_ms = 1 where id = 'over'";
    operator.batch_execute(over).await.or_fail()?;
    let late = a.commit(release("over", taken.token)).await;
    ensure!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    // Rows that an operator changed.
    let left = known(&a, &operator, "x").await?;
    operator
        .batch_execute("update objects set payload = 'theirs' where id = 'x'")
        .await
        .or_fail()?;
    let next = result(&a.commit(put("x", "ours")).await?)?;
    ensure!(next.version == left.version + 1, "{next:?} after {left:?}");
    quiet(&server)
}

pub(super) async fn contended() -> Outcome {
    const ROUNDS: usize = 25;
    let server = Postgres::start().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let stores = [connect(&url).await?, connect(&url).await?, connect(&url).await?];
    for id in ["p", "q"] {
        stores[0].commit(put(id, "0")).await?;
    }
    let cycles = stores.iter().flat_map(|store| (0..8).map(|n| take_turns(store, n % 4, ROUNDS)));
    let adders = stores.iter().flat_map(|store| ["p", "q"].map(|id| add_up(store, id, 40)));
    futures::try_join!(try_join_all(cycles), try_join_all(adders))?;
    quiet(&server)
}

/// Takes one of a few leases whenever it is free, puts a mark beside it, prolongs it, gives it back.
async fn take_turns(store: &Store, lease_number: usize, rounds: usize) -> Outcome {
    let id = format!("lease-{lease_number}");
    for _ in 0..rounds {
        let token = match store.commit(lease(&id)).await {
            Ok(taken) => result(&taken)?.token,
            Err(Error::AlreadyExists { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let touch = Touch { key: key(&id), revision: token, ttl: LIFE };
        store.touch(vec![touch]).await?.remove(0)?;
        let mark = format!("{id}#");
        store.commit(put(&mark, "somebody waits").ttl(LIFE)).await?;
        store.commit(release(&id, token)).await?;
        store.commit(Commit::new().delete(key(mark), Expect::Any)).await?;
    }
    Ok(())
}

/// Whether the server has logged no error since it was started.
fn quiet(server: &Postgres) -> Outcome {
    let log = std::fs::read_to_string(server.socket_folder().join("log")).or_fail()?;
    let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    let some = errors.iter().take(5).copied().collect::<Vec<_>>().join("\n");
    match errors.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} errors in the server's log:\n{some}"))),
    }
}
