//! Writes at the end of a life. The server ends a life with a marker that replaces whatever is there, a
//! write that it has just acknowledged included. Whoever was acknowledged that late must find its own
//! object in place, not anybody's.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use async_nats::{HeaderMap, jetstream};
use tenure::clock::ManualClock;
use tenure::store::{Commit, Event, Expect, Put, Store, Touch, Touched, Watch, WatchRequest};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_nats::{NatsStore, Options};
use tenure_testkit::Nats;

use crate::common::{OrFail, Outcome, Server, eventually, key, open, put};

/// The shortest life there is, and one that does not end meanwhile.
const LIFE: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("ends::a_renewal_at_the_end_of_a_life_is_kept_or_unknown", renewed_at_end);
    trials.test("ends::a_late_write_is_confirmed_by_its_own_object_only", move || late(server));
    trials.test("ends::what_follows_a_late_write_is_confirmed_as_well", move || follows(server));
}

/// Objects renewed as their lives end, while somebody takes over each that is gone: what is there
/// afterwards is another's, and no proof for the one who renewed.
async fn renewed_at_end() -> Outcome {
    const OBJECTS: u64 = 2000;
    let settings = tenure_testkit::NatsSettings { sync: None, ..Default::default() };
    let server = Nats::start_with(settings).or_fail()?;
    let url = server.fresh_bucket();
    // So many at once take a busy machine a while, which is not what this is about.
    let options = Options::new().reply_timeout(LONG);
    let holder = NatsStore::connect_with(&url, options).await?.into_store().with_timeout(LONG * 2);
    let rival = open(&url).await?;
    let watch = rival.watch(&WatchRequest::kind("thing")).await?;
    let taking_over = tokio::spawn(take_over(rival, watch));
    let renewals = (0..OBJECTS).map(|n| renew_at_end(&holder, n));
    let told = futures::future::try_join_all(renewals).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    taking_over.abort();
    let (mut kept, mut refused) = (0, 0);
    for (id, created, told) in told {
        let there = holder.get(&key(&id)).await?.map(|object| object.created_revision);
        match told {
            Ok(_) => {
                ensure_eq!(there, Some(created), "{id} was renewed and is another's");
                kept += 1;
            }
            Err(error) if error.is_unknown() => {}
            Err(error) => {
                ensure!(error.is_not_found() || error.is_conflict(), "{error}");
                ensure!(there != Some(created), "{id} was refused and is there");
                refused += 1;
            }
        }
    }
    ensure!(kept > 0 && refused > 0, "{kept} in time, {refused} too late");
    Ok(())
}

/// An object renewed around the instants at which the server looks for what has ended: its revision,
/// and what came of it.
async fn renew_at_end(
    store: &Store,
    n: u64,
) -> Result<(String, u64, tenure::Result<Touched>), Failure> {
    let id = format!("o{n}");
    let created = store.commit(put(&id, "first").ttl(LIFE)).await?.revision.unwrap_or(0);
    // Many at once and in the order in which they end, so that the server is at the same ones.
    tokio::time::sleep(LIFE + Duration::from_millis(n / 200 * 30)).await;
    let touch = Touch { key: key(&id), revision: created, ttl: LONG };
    let told = store.touch(vec![touch]).await?.remove(0);
    Ok((id, created, told))
}

/// Creates whatever is gone, at once.
async fn take_over(store: Store, mut watch: Watch) {
    while let Some(Ok(batch)) = watch.next().await {
        for event in &batch.events {
            let Event::Delete { key, .. } = event else { continue };
            let next = Put::new(key.clone(), "next").expect(Expect::Absent);
            let store = store.clone();
            tokio::spawn(async move { store.commit(next).await });
        }
    }
}

/// What happens to an object between a late write and the look after it.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Nothing,
    /// Somebody prolongs it.
    Prolonged,
    /// The server ends the life before it, and somebody is quick.
    Swept,
    /// Somebody deletes it, and creates another one.
    Replaced,
}

/// A store whose lives are over by its own clock as soon as it is told, and somebody else's.
struct Scene {
    clock: ManualClock,
    holder: Store,
    rival: Store,
    /// The bucket, and the stream it is to the server.
    bucket: String,
    stream: Stream,
    raw: jetstream::Context,
}

impl Scene {
    async fn set(server: Server) -> Result<Self, Failure> {
        let (url, clock) = (server.fresh_bucket(), ManualClock::new());
        let options = Options::new().clock(Arc::new(clock.clone()));
        let holder = NatsStore::connect_with(&url, options).await?.into_store();
        let bucket = url.rsplit('/').next().unwrap_or_default().to_owned();
        let client = async_nats::connect(format!("127.0.0.1:{}", server.0.port(0))).await;
        let raw = jetstream::new(client.or_fail()?);
        let stream = raw.get_stream(format!("KV_{bucket}")).await.or_fail()?;
        Ok(Self { clock, holder, rival: open(&url).await?, bucket, stream, raw })
    }

    fn subject(&self, id: &str) -> String {
        format!("$KV.{}.thing.{id}", self.bucket)
    }

    /// The last sequence of an object.
    async fn sequence(&self, id: &str) -> Result<u64, Failure> {
        let last = self.stream.get_last_raw_message_by_subject(&self.subject(id)).await;
        Ok(last.or_fail()?.sequence)
    }

    /// Ends a life as the server does.
    async fn sweep(&self, id: &str) -> Outcome {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Marker-Reason", "MaxAge");
        headers.insert("Nats-TTL", "120");
        headers.insert("Nats-Rollup", "sub");
        let sent = self.raw.publish_with_headers(self.subject(id), headers, "".into()).await;
        sent.or_fail()?.await.or_fail()?;
        Ok(())
    }

    /// Returns when it has happened, which is before the rival is told: it has been late as well.
    async fn happen(&self, fate: Fate, id: &str, revision: u64) -> Outcome {
        match fate {
            Fate::Nothing => return Ok(()),
            Fate::Prolonged => {}
            Fate::Swept => self.sweep(id).await?,
            Fate::Replaced => {
                self.rival.commit(Commit::new().delete(key(id), Expect::Exists)).await?;
            }
        }
        let (rival, before) = (self.rival.clone(), self.sequence(id).await?);
        let touch = Touch { key: key(id), revision, ttl: LONG };
        let next = put(id, "next").expect(Expect::Absent);
        tokio::spawn(async move {
            match fate {
                Fate::Prolonged => rival.touch(vec![touch]).await.map(drop),
                _ => rival.commit(next).await.map(drop),
            }
        });
        eventually("it happens", || async { Ok(self.sequence(id).await? > before) }).await
    }
}

async fn late(server: Server) -> Outcome {
    let scene = Scene::set(server).await?;
    for fate in [Fate::Nothing, Fate::Prolonged, Fate::Swept, Fate::Replaced] {
        for is_touch in [true, false] {
            let told = write_late(&scene, fate, is_touch).await?;
            match fate {
                Fate::Nothing | Fate::Prolonged => told?,
                Fate::Swept | Fate::Replaced => {
                    let is_unknown = told.as_ref().is_err_and(tenure::Error::is_unknown);
                    ensure!(is_unknown, "{fate:?}, touched {is_touch}: {told:?}");
                }
            }
        }
    }
    Ok(())
}

/// What a late write is told that meets this fate before it is looked after.
async fn write_late(
    scene: &Scene,
    fate: Fate,
    is_touch: bool,
) -> Result<tenure::Result<()>, Failure> {
    for n in 0..20 {
        let id = format!("{fate:?}-{is_touch}-{n}");
        let first = scene.holder.commit(put(&id, "first").ttl(LONG)).await?;
        let revision = first.revision.unwrap_or(0);
        scene.clock.advance(LONG * 2);
        let (holder, key) = (scene.holder.clone(), key(&id));
        let writing = tokio::spawn(async move {
            if is_touch {
                let touch = Touch { key, revision, ttl: LONG };
                return holder.touch(vec![touch]).await?.remove(0).map(drop);
            }
            let second = Put::new(key, "second").ttl(LONG).expect(Expect::Exists);
            holder.commit(second).await.map(drop)
        });
        eventually("it is written", || async { Ok(scene.sequence(&id).await? > revision) }).await?;
        let now = scene.rival.get(&self::key(&id)).await?.map_or(0, |object| object.revision);
        scene.happen(fate, &id, now).await?;
        // On a busy machine it may have been too quick.
        if matches!(fate, Fate::Nothing) || !writing.is_finished() {
            return writing.await.or_fail();
        }
    }
    Err(Failure::new(format!("never in time: {fate:?}")))
}

/// A marker that is under way takes along what was written over a late write, too, whoever wrote it.
async fn follows(server: Server) -> Outcome {
    let scene = Scene::set(server).await?;
    for is_own in [true, false] {
        let mut is_settled = false;
        for n in 0..20 {
            let id = format!("{is_own}-{n}");
            scene.holder.commit(put(&id, "first").ttl(LONG)).await?;
            scene.clock.advance(LONG * 2);
            let gone = scene.holder.commit(Commit::new().delete(key(&id), Expect::Exists)).await?;
            let next = if is_own { scene.holder.clone() } else { scene.rival.clone() };
            let create = put(&id, "next").ttl(LONG).expect(Expect::Absent);
            let creating = tokio::spawn(async move { next.commit(create).await });
            eventually("it is created", || async {
                Ok(scene.sequence(&id).await? > gone.revision.unwrap_or(0))
            })
            .await?;
            scene.sweep(&id).await?;
            let was_in_time = !creating.is_finished();
            let told = creating.await.or_fail()?;
            if was_in_time {
                ensure!(told.as_ref().is_err_and(tenure::Error::is_unknown), "{told:?}");
                is_settled = true;
                break;
            }
        }
        ensure!(is_settled, "told at once that it is in place, own deletion: {is_own}");
    }
    Ok(())
}
