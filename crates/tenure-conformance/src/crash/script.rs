//! What a worker does until it is killed: an endless script that anybody can recompute.
//!
//! Step *n* is a function of *n* alone, and each step leaves the same state when it is done twice. So
//! after a kill there are only two states that the worker may have left: that after its last
//! acknowledged step, and that after the next.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::store::{Commit, Expect, Put, Store, Touch};
use tenure::{Error, Key};

use crate::helpers::text;

/// Kinds of step; the script rotates through them.
const STEPS: u64 = 6;
const SINGLE: u64 = 0;
const IN_STEP: u64 = 1;
const FLIP: u64 = 2;
const TOUCH: u64 = 3;
const COUNT: u64 = 4;
const SWAP: u64 = 5;

/// The life of the object that is touched: it never ends during a check.
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(3600);

/// Objects that carry the same step at all times.
const TOGETHER: [&str; 3] = ["a", "b", "c"];

/// The one object that all workers write.
pub(crate) const COUNTER: &str = "counter";

/// The request to a worker: run the script from this step on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spam {
    pub kind: String,
    pub worker: u32,
    pub from: u64,
}

/// What the counter holds: how many counting steps each worker did, by its last one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counter {
    pub total: u64,
    pub last: BTreeMap<u32, u64>,
}

impl Spam {
    /// Runs until killed, or until nobody listens.
    pub(crate) async fn run(
        self,
        store: &Store,
        say: impl Fn(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        for step in self.from.. {
            // Steps can be repeated, so an outcome that is unknown is settled by doing it again.
            while let Err(error) = self.step(store, step).await {
                let again = matches!(error, Error::Unavailable { .. } | Error::Unknown { .. });
                if !again {
                    say(&format!("step {step}: {error}"))?;
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            say(&step.to_string())?;
        }
        Ok(())
    }

    pub(crate) fn key(&self, name: &str) -> Key {
        Key::new(&self.kind, format!("{name}-{}", self.worker))
    }

    fn put(&self, name: &str, step: u64) -> Put {
        Put::new(self.key(name), step.to_string())
    }

    pub(super) async fn step(&self, store: &Store, step: u64) -> tenure::Result<()> {
        let caps = store.capabilities();
        let commit = match step % STEPS {
            IN_STEP if caps.multi_object_commits => {
                TOGETHER.iter().fold(Commit::new(), |c, name| c.put(self.put(name, step)))
            }
            SWAP if caps.multi_object_commits => {
                let (gone, there) = swapped(step);
                Commit::new().delete(self.key(gone), Expect::Any).put(self.put(there, step))
            }
            FLIP if is_there(step) => self.put("flip", step).into(),
            FLIP => Commit::new().delete(self.key("flip"), Expect::Any),
            TOUCH if caps.ttl.is_some() => return self.touch(store).await,
            COUNT => return self.count(store, step).await,
            _ => self.put("single", step).into(),
        };
        store.commit(commit).await.map(|_| ())
    }

    async fn touch(&self, store: &Store) -> tenure::Result<()> {
        let key = self.key("lease");
        let Some(object) = store.get(&key).await? else {
            return store.commit(Put::new(key, "lease").ttl(LEASE_TTL)).await.map(|_| ());
        };
        let touch = Touch { key, revision: object.revision, ttl: LEASE_TTL };
        let touched = store.touch(vec![touch]).await?.into_iter().next();
        touched.unwrap_or_else(|| Err(Error::invalid("touch", "it had no answer"))).map(|_| ())
    }

    async fn count(&self, store: &Store, step: u64) -> tenure::Result<()> {
        let key = Key::new(&self.kind, COUNTER);
        loop {
            let object = store.get(&key).await?;
            let mut counter: Counter = object
                .as_ref()
                .and_then(|object| serde_json::from_str(&text(object)).ok())
                .unwrap_or_default();
            if counter.last.get(&self.worker).is_some_and(|last| *last >= step) {
                return Ok(());
            }
            counter.total += 1;
            counter.last.insert(self.worker, step);
            let payload = serde_json::to_vec(&counter).unwrap_or_default();
            let expect = object.map_or(Expect::Absent, |o| Expect::Revision(o.revision));
            match store.commit(Put::new(key.clone(), payload).expect(expect)).await {
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                other => return other.map(|_| ()),
            }
        }
    }
}

/// Whether the flipping object is there after this flip.
fn is_there(step: u64) -> bool {
    (step / STEPS).is_multiple_of(2)
}

/// Which object goes and which comes with this swap.
fn swapped(step: u64) -> (&'static str, &'static str) {
    if is_there(step) { ("x", "y") } else { ("y", "x") }
}

/// The last step of a sort among the first `done`; 0 if there was none.
fn last(done: u64, sort: u64) -> u64 {
    let back = (done % STEPS + STEPS - sort) % STEPS;
    done.saturating_sub(back)
}

/// What a worker's objects must be after so many steps: name → payload, and its last counting step.
pub(crate) fn state_after(
    done: u64,
    multi: bool,
    ttl: bool,
) -> (BTreeMap<&'static str, String>, u64) {
    let mut state = BTreeMap::new();
    let mut single = last(done, SINGLE);
    let (in_step, flip, touch, swap) =
        (last(done, IN_STEP), last(done, FLIP), last(done, TOUCH), last(done, SWAP));
    if multi {
        if in_step > 0 {
            state.extend(TOGETHER.map(|name| (name, in_step.to_string())));
        }
        if swap > 0 {
            state.insert(swapped(swap).1, swap.to_string());
        }
    } else {
        single = single.max(in_step).max(swap);
    }
    match ttl {
        true if touch > 0 => _ = state.insert("lease", "lease".into()),
        true => {}
        false => single = single.max(touch),
    }
    if flip > 0 && is_there(flip) {
        state.insert("flip", flip.to_string());
    }
    if single > 0 {
        state.insert("single", single.to_string());
    }
    (state, last(done, COUNT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::store::{Query, memory::MemoryStore};

    #[tokio::test]
    async fn the_script_leaves_what_it_says_also_when_steps_are_repeated() {
        let store = MemoryStore::new().into_store();
        let spam = Spam { kind: "k".into(), worker: 1, from: 1 };
        for step in 1..60 {
            for _ in 0..=(step % 2) {
                spam.step(&store, step).await.unwrap();
            }
            let (expected, counted) = state_after(step, true, true);
            let mut found = BTreeMap::new();
            for object in store.list_all(&Query::new("k")).await.unwrap() {
                if object.key.id == COUNTER {
                    let counter: Counter = serde_json::from_str(&text(&object)).unwrap();
                    assert_eq!(counter.last[&1], counted, "step {step}");
                    assert_eq!(counter.total, step.div_ceil(STEPS).min((step + 2) / STEPS));
                } else {
                    found.insert(object.key.id.replace("-1", ""), text(&object));
                }
            }
            let expected: BTreeMap<_, _> =
                expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            assert_eq!(found, expected, "step {step}");
        }
    }
}
