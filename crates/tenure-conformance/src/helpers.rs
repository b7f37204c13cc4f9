//! What many behaviours need: counters, watching until, and a replica that knows what may follow what.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Batch, Capabilities, Event, Expect, Put, Store, Watch, WriteResult};
use tenure::{Error, Key, Object};
use tokio::time::timeout;

use crate::Failure;
use crate::context::{Context, PATIENCE};

/// The payload as text, which is what the suite writes.
pub(crate) fn text(object: &Object) -> String {
    String::from_utf8_lossy(&object.payload).into_owned()
}

/// The payload as a number; garbage is 0, which no check mistakes for what it wrote.
pub(crate) fn number(object: &Object) -> u64 {
    text(object).parse().unwrap_or_default()
}

/// Somebody always gets through, so that whoever tries so often is not unlucky.
pub(crate) const ATTEMPTS: u32 = 20_000;

/// Adds one by compare-and-set, as often as it takes.
pub(crate) async fn increment(store: &Store, key: &Key) -> tenure::Result<u64> {
    for _ in 0..ATTEMPTS {
        let object = store.get(key).await?;
        let (expect, value) = match &object {
            Some(object) => (Expect::Revision(object.revision), number(object) + 1),
            None => (Expect::Absent, 1),
        };
        // The gap in which a lost update happens: wide enough also where calls never wait, and a
        // place where a loop that gets nowhere can be stopped.
        tokio::task::yield_now().await;
        match store.commit(Put::new(key.clone(), value.to_string()).expect(expect)).await {
            Ok(_) => return Ok(value),
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::invalid(format!("increment of {key}"), "it conflicts for ever"))
}

/// One put, with its result.
pub(crate) async fn put(store: &Store, put: Put) -> Result<WriteResult, Failure> {
    let done = store.commit(put).await?;
    done.first_put().ok_or_else(|| Failure::new("a put was confirmed without its result"))
}

/// The object, which must be there.
pub(crate) async fn existing(store: &Store, key: &Key) -> Result<Object, Failure> {
    store.get(key).await?.ok_or_else(|| Failure::new(format!("{key} is not there")))
}

/// The next batch, within reason.
pub(crate) async fn next(watch: &mut Watch) -> Result<Arc<Batch>, Failure> {
    match timeout(PATIENCE, watch.next()).await {
        Err(_) => Err(Failure::late(format!("the watch told nothing for {PATIENCE:?}"))),
        Ok(None) => Err(Failure::new("the watch ended without an error")),
        Ok(Some(batch)) => Ok(batch?),
    }
}

/// The next batch of a watch that waits for time to pass. A store on a manual clock may have set its
/// timer a moment before the clock was moved, so the clock is nudged until it has noticed.
pub(crate) async fn next_in_time(ctx: &Context, watch: &mut Watch) -> Result<Arc<Batch>, Failure> {
    if !ctx.is_manual() {
        return next(watch).await;
    }
    for _ in 0..100 {
        match timeout(Duration::from_millis(100), watch.next()).await {
            Err(_) => ctx.pass(Duration::from_secs(1)).await,
            Ok(None) => return Err(Failure::new("the watch ended without an error")),
            Ok(Some(batch)) => return Ok(batch?),
        }
    }
    Err(Failure::new("the watch told nothing although time passed"))
}

/// Every batch up to and with the first that concerns this key.
pub(crate) async fn until_key(watch: &mut Watch, key: &Key) -> Result<Vec<Arc<Batch>>, Failure> {
    let mut batches = Vec::new();
    let reading = async {
        loop {
            let batch = next(watch).await?;
            let last = batch.events.iter().any(|event| event.key() == key);
            batches.push(batch);
            if last {
                return Ok::<(), Failure>(());
            }
        }
    };
    // Others may go on writing, so the watch need not fall silent before this is hopeless.
    let read = timeout(PATIENCE * 2, reading).await;
    read.map_err(|_| format!("the watch never told of {key}, {} batches long", batches.len()))??;
    Ok(batches)
}

/// The first error of a refused commit, or a failure if it went through.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: tenure::Result<T>) -> Result<Error, Failure> {
    match result {
        Ok(done) => Err(Failure::new(format!("it was to be refused, but the answer is {done:?}"))),
        Err(error @ (Error::Unavailable { .. } | Error::Unknown { .. })) => Err(error.into()),
        Err(error) => Ok(error),
    }
}

/// The objects as a watcher knows them. It notices when an event cannot follow the one before:
/// something was missed, repeated, or told in the wrong order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replica {
    pub objects: BTreeMap<Key, Arc<Object>>,
    pub revision: u64,
}

impl Replica {
    /// As after a list.
    pub(crate) fn of(objects: Vec<Object>, revision: u64) -> Self {
        let objects = objects.into_iter().map(|o| (o.key.clone(), Arc::new(o))).collect();
        Self { objects, revision }
    }

    pub(crate) fn apply(&mut self, batch: &Batch, caps: &Capabilities) -> Result<(), Failure> {
        ensure!(
            batch.revision > self.revision,
            "a batch of revision {} came after revision {}",
            batch.revision,
            self.revision
        );
        ensure!(!batch.events.is_empty(), "batch {} is empty", batch.revision);
        self.revision = batch.revision;
        for event in &batch.events {
            match event {
                Event::Put(object) => self.put(object, batch.revision, caps)?,
                Event::Delete { key, .. } => {
                    ensure!(
                        self.objects.remove(key).is_some(),
                        "revision {} deletes {key}, which the watcher never saw",
                        batch.revision
                    );
                }
            }
        }
        Ok(())
    }

    fn put(
        &mut self,
        object: &Arc<Object>,
        revision: u64,
        caps: &Capabilities,
    ) -> Result<(), Failure> {
        let key = &object.key;
        ensure_eq!(object.revision, revision, "revision of {key} in its batch");
        let before = self.objects.get(key).map_or(0, |before| before.version);
        // A touch that draws a revision tells the object again, with the version it had.
        let touched = !caps.touch_keeps_revision && before > 0 && object.version == before;
        ensure!(
            object.version == before + 1 || touched,
            "{key}: version {} cannot follow version {before} (revision {revision})",
            object.version
        );
        self.objects.insert(key.clone(), Arc::clone(object));
        Ok(())
    }

    /// Whether it knows exactly what a list shows.
    pub(crate) fn matches(&self, listed: &[Object]) -> Result<(), Failure> {
        let told: Vec<_> = self.objects.values().map(|o| numbers(o)).collect();
        let seen: Vec<_> = listed.iter().map(numbers).collect();
        ensure_eq!(told, seen, "what the watcher knows and what the list shows");
        Ok(())
    }
}

fn numbers(object: &Object) -> (String, u64, u64, String) {
    (object.key.to_string(), object.version, object.revision, text(object))
}
