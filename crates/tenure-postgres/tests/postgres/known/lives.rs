//! Objects that come and go: created as absent, given a life, touched, over, released.

use std::time::Duration;

use tenure::Error;
use tenure::clock::{Clock, SystemClock};
use tenure::store::{Commit, Event, Expect, Touch, WatchRequest};
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_testkit::Proxy;

use super::{known, result, was_quick};
use crate::common::{OrFail, Outcome, Server, connect, key, put, raw};

pub(super) async fn mortal(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, client) = (connect(&url).await?, raw(&url).await?);
    let short = Duration::from_millis(1500);
    // Touched: the new life counts, though no revision tells of it.
    known(&store, &client, "x").await?;
    let given = result(&store.commit(put("x", "mortal").ttl(short)).await?)?;
    let long = Duration::from_secs(600);
    let touch = Touch { key: key("x"), revision: given.revision, ttl: long };
    store.touch(vec![touch]).await?.remove(0)?;
    tokio::time::sleep(short * 2).await;
    let kept = put("x", "immortal").expect(Expect::Version(given.version));
    ensure_eq!(result(&store.commit(kept).await?)?.version, given.version + 1);
    ensure_eq!(store.get(&key("x")).await?.ok_or("gone")?.expires_in, None);
    // Expired: it is gone, though it was known a moment ago.
    let left = known(&store, &client, "x").await?;
    let given = result(&store.commit(put("x", "mortal").ttl(short)).await?)?;
    ensure_eq!(given.version, left.version + 1);
    tokio::time::sleep(short * 2).await;
    let late = store.commit(put("x", "late").expect(Expect::Version(given.version))).await;
    ensure!(matches!(late, Err(Error::NotFound { .. })), "{late:?}");
    Ok(())
}

fn lease(id: &str, life: Duration) -> Commit {
    let put = put(id, "held").ttl(life).expect(Expect::Absent);
    Commit::from(put).check(key("mark"), Expect::Absent)
}

fn release(id: &str, token: u64) -> Commit {
    Commit::new().delete(key(id), Expect::Token(token))
}

pub(super) async fn cycles(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, client) = (connect(&url).await?, raw(&url).await?);
    known(&store, &client, "x").await?;
    let mut watch = store.watch(&WatchRequest::default()).await?;
    let mut last = 0;
    for round in 0..20 {
        let sent = SystemClock.uptime();
        let taken = result(&store.commit(lease("l", Duration::from_secs(60))).await?)?;
        ensure!(was_quick(&client).await?, "round {round}: creating was not quick");
        ensure!(taken.token > last && taken.token == taken.revision && taken.version == 1);
        let object = store.get(&key("l")).await?.ok_or("gone")?;
        let (left, gone) = (object.expires_in.ok_or("no life")?, SystemClock.uptime() - sent);
        // Counted from no earlier than the request. What is said to be left is told in whole
        // milliseconds, and never too much.
        let least = Duration::from_secs(60).saturating_sub(gone + Duration::from_millis(2));
        ensure!(left >= least && left <= Duration::from_secs(60), "{left:?} of {least:?}");
        ensure_eq!(object.token, taken.token);
        let freed = store.commit(release("l", taken.token)).await?;
        ensure!(was_quick(&client).await?, "round {round}: deleting was not quick");
        ensure_eq!(freed.revision, Some(taken.revision + 1));
        ensure_eq!(store.get(&key("l")).await?, None);
        last = taken.token;
        let came = watch.next().await.ok_or("the watch ended")??;
        let went = watch.next().await.ok_or("the watch ended")??;
        ensure_eq!((came.revision, went.revision), (last, last + 1));
        let [Event::Delete { last: Some(object), .. }] = &went.events[..] else {
            return Err(Failure::new(format!("{went:?}")));
        };
        ensure_eq!((object.revision, object.payload.as_ref()), (last, b"held".as_slice()));
    }
    // Released twice, taken twice: refusals are as true as ever.
    let twice = store.commit(release("l", last)).await;
    ensure!(matches!(twice, Err(Error::Lost { current: None, .. })), "{twice:?}");
    store.commit(lease("l", Duration::from_secs(60))).await?;
    let taken = store.commit(lease("l", Duration::from_secs(60))).await;
    ensure!(matches!(taken, Err(Error::AlreadyExists { .. })), "{taken:?}");
    Ok(())
}

pub(super) async fn lives(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (a, b, client) = (connect(&url).await?, connect(&url).await?, raw(&url).await?);
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(600));
    // Cut short by somebody's touch, of which no counter tells: it cannot be released any more.
    known(&a, &client, "x").await?;
    let taken = result(&a.commit(lease("l", long)).await?)?;
    b.touch(vec![Touch { key: key("l"), revision: taken.revision, ttl: short }])
        .await?
        .remove(0)?;
    tokio::time::sleep(short * 2).await;
    let late = a.commit(release("l", taken.token)).await;
    ensure!(matches!(late, Err(Error::Lost { .. })), "{late:?}");
    // Prolonged: it can be, after the end that its holder wrote.
    known(&a, &client, "x").await?;
    let taken = result(&a.commit(lease("m", short)).await?)?;
    b.touch(vec![Touch { key: key("m"), revision: taken.revision, ttl: long }]).await?.remove(0)?;
    tokio::time::sleep(short * 2).await;
    a.commit(release("m", taken.token)).await?;
    // Over: another may take it, though we put it there and nothing has removed it.
    known(&a, &client, "x").await?;
    let first = result(&a.commit(lease("n", short)).await?)?;
    tokio::time::sleep(short * 2).await;
    let next = result(&a.commit(lease("n", long)).await?)?;
    ensure!(next.token > first.token, "{next:?} after {first:?}");
    let late = a.commit(release("n", first.token)).await;
    ensure!(
        matches!(late, Err(Error::Lost { current: Some(token), .. }) if token == next.token),
        "{late:?}"
    );
    Ok(())
}

pub(super) async fn absent(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (a, b, client) = (connect(&url).await?, connect(&url).await?, raw(&url).await?);
    let life = Duration::from_secs(60);
    b.commit(put("mark", "theirs")).await?;
    b.commit(put("taken", "theirs").name("name")).await?;
    known(&a, &client, "x").await?;
    // The other's objects are none that this process knows.
    let refused = a.commit(lease("l", life)).await;
    let is_mark =
        |error: &Error| matches!(error, Error::AlreadyExists { key, .. } if key.id == "mark");
    ensure!(refused.as_ref().is_err_and(is_mark), "{refused:?}");
    ensure_eq!(a.get(&key("l")).await?, None);
    // Neither may a row that we know be replaced beside it.
    known(&a, &client, "x").await?;
    let refused = a.commit(Commit::from(put("x", "y")).check(key("mark"), Expect::Absent)).await;
    ensure!(refused.as_ref().is_err_and(is_mark), "{refused:?}");
    known(&a, &client, "x").await?;
    let refused = a.commit(put("taken", "ours").ttl(life).expect(Expect::Absent)).await;
    ensure!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    known(&a, &client, "x").await?;
    let refused = a.commit(put("named", "ours").name("name").expect(Expect::Absent)).await;
    ensure!(matches!(refused, Err(Error::NameTaken { .. })), "{refused:?}");
    // In one group, what one commit creates another may not find absent, or the other way round.
    b.commit(Commit::new().delete(key("mark"), Expect::Exists)).await?;
    for round in 0..20 {
        known(&a, &client, "x").await?;
        let mark = put("mark", "ours").expect(Expect::Absent);
        let id = format!("l-{round}");
        let (marked, taken) = futures::join!(a.commit(mark), a.commit(lease(&id, life)));
        let (marked, taken) = (result(&marked?)?, taken.ok().map(|done| done.revision));
        ensure!(taken.is_none_or(|taken| taken < Some(marked.revision)), "{taken:?} {marked:?}");
        a.commit(Commit::new().delete(key("mark"), Expect::Revision(marked.revision))).await?;
    }
    Ok(())
}

/// Whose answers were long on their way has a vague notion of the time. What it writes without asking
/// lives no longer for that.
pub(super) async fn vague(server: Server) -> Outcome {
    const LATE: Duration = Duration::from_millis(50);
    const LIFE: Duration = Duration::from_secs(60);
    let url = server.fresh_database()?;
    let (near, client) = (connect(&url).await?, raw(&url).await?);
    for touches in [false, true] {
        let proxy = Proxy::start(server.0.port()).or_fail()?;
        proxy.slow(LATE);
        let detour = url.replace(&server.0.port().to_string(), &proxy.port().to_string());
        let far = connect(&detour).await?;
        known(&far, &client, "x").await?;
        let id = format!("touched: {touches}");
        if touches {
            let given = result(&far.commit(lease(&id, LIFE)).await?)?;
            let touch = Touch { key: key(&id), revision: given.revision, ttl: LIFE };
            far.touch(vec![touch.clone()]).await?.remove(0)?;
            proxy.open();
            far.touch(vec![touch]).await?.remove(0)?;
        } else {
            proxy.open();
            far.commit(lease(&id, LIFE)).await?;
            ensure!(was_quick(&client).await?, "creating was not quick");
        }
        let left = near.get(&key(&id)).await?.ok_or("gone")?.expires_in.ok_or("no life")?;
        ensure!(left <= LIFE, "{id}: {left:?} left of {LIFE:?}");
        far.close().await;
    }
    Ok(())
}
