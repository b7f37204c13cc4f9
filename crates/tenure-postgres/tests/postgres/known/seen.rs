//! Objects that somebody else wrote: a process that is alone by now looks at them before it commits.

use futures::future::try_join_all;
use tenure::Error;
use tenure::store::{Commit, Event, Expect, WatchRequest};
use tenure_conformance::{Failure, ensure, ensure_eq};

use super::{known, result, was_quick};
use crate::common::{OrFail, Outcome, Server, connect, eventually, key, put, raw};

pub(super) async fn others(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (a, b, client) = (connect(&url).await?, connect(&url).await?, raw(&url).await?);
    let theirs = |payload: &str| put("x", payload).name("name").label("a", "b");
    b.commit(theirs("theirs")).await?;
    let created = result(&b.commit(theirs("theirs again")).await?)?;
    b.commit(put("y", "theirs")).await?;
    known(&a, &client, "mine").await?;
    let mut watch = a.watch(&WatchRequest::default()).await?;
    // Changed: it goes on from what is there.
    let changed = result(&a.commit(theirs("ours").label("c", "d")).await?)?;
    ensure!(was_quick(&client).await?, "changing was not quick");
    ensure_eq!((changed.version, changed.token), (3, created.token));
    let object = b.get(&key("x")).await?.ok_or("gone")?;
    ensure_eq!((object.version, object.revision), (3, changed.revision));
    ensure_eq!((object.name.as_deref(), object.labels.len()), (Some("name"), 2));
    ensure_eq!(object.created_revision, created.created_revision);
    // Deleted, by the version that the other one gave it.
    a.commit(Commit::new().delete(key("y"), Expect::Version(1))).await?;
    ensure!(was_quick(&client).await?, "deleting was not quick");
    ensure_eq!(b.get(&key("y")).await?, None);
    // Not there: it comes.
    ensure_eq!(result(&a.commit(put("z", "ours")).await?)?.version, 1);
    ensure!(was_quick(&client).await?, "creating was not quick");
    for (version, is_put) in [(3, true), (1, false), (1, true)] {
        let batch = watch.next().await.ok_or("the watch ended")??;
        let found = match &batch.events[..] {
            [Event::Put(object)] => (object.version, true),
            [Event::Delete { last: Some(last), .. }] => (last.version, false),
            other => return Err(Failure::new(format!("{other:?}"))),
        };
        ensure_eq!(found, (version, is_put));
    }
    refusals(&a, &b).await
}

/// What is refused is refused by what is there.
async fn refusals(a: &tenure::store::Store, b: &tenure::store::Store) -> Outcome {
    b.commit(put("w", "theirs")).await?;
    // So that nothing is known of it, and nobody has written since.
    a.commit(put("mine", "once more")).await?;
    let late = a.commit(put("w", "late").expect(Expect::Version(7))).await;
    ensure!(
        matches!(&late, Err(Error::Conflict { current, .. }) if current.version == 1),
        "{late:?}"
    );
    let gone = a.commit(Commit::new().delete(key("nowhere"), Expect::Exists)).await;
    ensure!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
    let absent = a.commit(put("nowhere", "x").expect(Expect::Exists)).await;
    ensure!(matches!(absent, Err(Error::NotFound { .. })), "{absent:?}");
    ensure_eq!(a.get(&key("nowhere")).await?, None);
    Ok(())
}

/// Two processes that take turns at the counter change the same objects, of which neither knows
/// anything, at the same time: each change counts.
pub(super) async fn race(server: Server) -> Outcome {
    const OBJECTS: usize = 40;
    const ROUNDS: u64 = 5;
    let url = server.fresh_database()?;
    let made = connect(&url).await?;
    for n in 0..OBJECTS {
        made.commit(put(format!("{n}"), "new")).await?;
    }
    made.close().await;
    for round in 0..ROUNDS {
        // New ones know nothing.
        let (a, b) = (connect(&url).await?, connect(&url).await?);
        let both = [(&a, "a"), (&b, "b")].map(|(store, name)| async move {
            store.commit(put(format!("mine-{name}"), &format!("{round}"))).await?;
            for n in 0..OBJECTS {
                store.commit(put(format!("{n}"), &format!("{name} {round}"))).await?;
            }
            Ok::<_, Error>(())
        });
        try_join_all(both).await?;
        a.close().await;
        b.close().await;
    }
    let store = connect(&url).await?;
    for n in 0..OBJECTS {
        let object = store.get(&key(format!("{n}"))).await?.ok_or("gone")?;
        ensure_eq!(object.version, 1 + 2 * ROUNDS, "{}", object.key);
    }
    Ok(())
}

/// The caller goes while the store looks at the row that the commit is about.
pub(super) async fn abandoned(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, other) = (connect(&url).await?, connect(&url).await?);
    let (client, operator) = (raw(&url).await?, raw(&url).await?);
    other.commit(put("theirs", "x")).await?;
    known(&store, &client, "mine").await?;
    let lock = "begin; lock table objects in access exclusive mode";
    operator.batch_execute(lock).await.or_fail()?;
    let caller = store.clone();
    let caller = tokio::spawn(async move { caller.commit(put("theirs", "ours")).await });
    let looks = "select count(*) > 0 from pg_stat_activity where datname = current_database() \
                 and wait_event_type = 'Lock' and query like 'select m.revision, m.xmin%'";
    eventually("the store looks", || async {
        Ok(client.query_one(looks, &[]).await.or_fail()?.get(0))
    })
    .await?;
    caller.abort();
    let gone = caller.await;
    operator.batch_execute("rollback").await.or_fail()?;
    ensure!(gone.is_err(), "{gone:?}");
    store.commit(put("mine", "next")).await?;
    ensure!(was_quick(&client).await?, "something was sent in vain");
    ensure_eq!(other.get(&key("theirs")).await?.map(|object| object.version), Some(1));
    Ok(())
}

/// One object goes and leaves its name to another, at the same time: there is no revision at which both
/// have it.
pub(super) async fn names(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, client) = (connect(&url).await?, raw(&url).await?);
    let mut traded = 0;
    for round in 0..40 {
        known(&store, &client, "mine").await?;
        let (old, new) = (format!("old-{round}"), format!("new-{round}"));
        let name = format!("name-{round}");
        store.commit(put(&old, "x").name(&name)).await?;
        // Under way when the other two come, so that these are one group.
        let (_, gone, come) = futures::join!(
            store.commit(put("mine", &format!("round {round}"))),
            store.commit(Commit::new().delete(key(&old), Expect::Exists)),
            store.commit(put(&new, "y").name(&name).expect(Expect::Absent)),
        );
        let gone = gone?.revision.ok_or("nothing was deleted")?;
        match come {
            Ok(come) => {
                traded += 1;
                let come = result(&come)?.revision;
                ensure!(come > gone, "{new} came at {come}, {old} went at {gone}");
            }
            Err(Error::NameTaken { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(traded > 0, "the name was never free in time");
    Ok(())
}
