//! The world stops before every single step of a commit, of a touch, of a rotation and of a
//! recovery, by kill and by power cut; afterwards everything is old or everything is new.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::crash::CrashPoint;
use crate::layout::TEMP_PREFIX;
use crate::{FileStore, HistoryLimits};
use tenure::Key;
use tenure::clock::ManualClock;
use tenure::store::{Commit, Expect, Put, Query, Store, Touch, WatchRequest};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Kill,
    PowerCut,
    /// The same, but the head was on the disk by chance.
    PowerCutBehindHead,
}

pub(super) struct World {
    pub(super) folder: tempfile::TempDir,
    clock: ManualClock,
    boot: u32,
    segment_bytes: u64,
}

pub(super) type Seen = BTreeMap<String, (Vec<u8>, Option<String>, u64, Option<Duration>)>;

impl World {
    pub(super) fn new(segment_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, clock: ManualClock::new(), boot: 1, segment_bytes }
    }

    pub(super) fn open_with(&self, crash: Option<Arc<CrashPoint>>) -> tenure::Result<Store> {
        let limits =
            HistoryLimits { segment_bytes: self.segment_bytes, ..HistoryLimits::default() };
        let mut options = FileStore::options()
            .clock(Arc::new(self.clock.clone()))
            .boot_id(format!("boot-{}", self.boot))
            .history(limits);
        options.crash = crash;
        Ok(options.open(self.folder.path())?.into_store())
    }

    pub(super) fn open(&self) -> Store {
        self.open_with(None).unwrap()
    }

    pub(super) async fn end(&mut self, store: Store, crash: &CrashPoint, end: End) {
        store.close().await;
        self.lose(crash, end);
    }

    fn lose(&mut self, crash: &CrashPoint, end: End) {
        if end != End::Kill {
            crash.cut_power(end == End::PowerCutBehindHead);
            self.boot += 1;
        }
    }
}

pub(super) fn key(id: &str) -> Key {
    Key::new("k", id)
}

pub(super) async fn seen(store: &Store) -> Seen {
    let objects = store.list_all(&Query::new("k")).await.unwrap();
    let mut seen = Seen::new();
    for object in objects {
        if let Some(name) = &object.name {
            let named = store.get_by_name("k", name).await.unwrap();
            assert_eq!(named.unwrap().key, object.key);
        }
        let value = (object.payload.to_vec(), object.name, object.revision, object.expires_in);
        seen.insert(object.key.id, value);
    }
    for name in ["one", "two", "three"] {
        if let Some(object) = store.get_by_name("k", name).await.unwrap() {
            assert_eq!(object.name.as_deref(), Some(name));
        }
    }
    seen
}

fn temp_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(temp_files(&path));
        } else if path.file_name().unwrap().to_str().unwrap().starts_with(TEMP_PREFIX) {
            found.push(path);
        }
    }
    found
}

pub(super) async fn prepare(world: &World) -> Seen {
    let store = world.open();
    let long = "long".repeat(100);
    let life = Duration::from_secs(60);
    let first = Commit::new()
        .put(Put::new(key("a"), "a1").name("one"))
        .put(Put::new(key("b"), "b1").name("two"))
        .put(Put::new(key("c"), "c1").ttl(life))
        .put(Put::new(key("d"), "d1").name("three"))
        .put(Put::new(key(&long), "l1"));
    store.commit(first).await.unwrap();
    world.clock.advance(Duration::from_secs(1));
    let before = seen(&store).await;
    store.close().await;
    before
}

/// Puts, a delete, names that trade places, a life prolonged, a new long id and a new kind.
pub(super) fn change() -> Commit {
    Commit::new()
        .put(Put::new(key("a"), "a2").name("two"))
        .put(Put::new(key("b"), "b2").name("one"))
        .put(Put::new(key("c"), "c1").ttl(Duration::from_secs(60)))
        .delete(key("d"), Expect::Exists)
        .delete(key(&"long".repeat(100)), Expect::Any)
        .put(Put::new(key(&"new".repeat(150)), "n1").name("three"))
        .put(Put::new(Key::new("other", "x"), "x1"))
}

async fn crash_in_commit(end: End, segment_bytes: u64) {
    let (mut old, mut new) = (0, 0);
    for step in 0.. {
        let mut world = World::new(segment_bytes);
        let before = prepare(&world).await;
        let crash = Arc::new(CrashPoint::new(None));
        let store = world.open_with(Some(Arc::clone(&crash))).unwrap();
        crash.arm(step);
        let result = store.commit(change()).await;
        let finished = !crash.crashed();
        assert_eq!(result.is_ok(), finished, "step {step}: {result:?}");
        world.end(store, &crash, end).await;

        let store = world.open();
        let after = seen(&store).await;
        let page = store.list(&Query::new("other")).await.unwrap();
        // What was left of a life when the power went counts from the last note of the time.
        let same = |seen: &Seen| -> Vec<_> {
            seen.iter().map(|(id, v)| (id.clone(), v.0.clone(), v.1.clone(), v.2)).collect()
        };
        if same(&after) == same(&before) {
            let life = after["c"].3.unwrap().as_secs();
            assert!(life == 59 || (life == 60 && end != End::Kill), "step {step}: {life}");
            assert!(page.objects.is_empty() && page.revision == 1, "step {step}");
            assert!(!finished);
            old += 1;
        } else {
            assert!(page.objects.len() == 1 && page.revision == 2, "step {step}");
            let values: Vec<_> = after.values().map(|v| (v.0.as_slice(), v.1.as_deref())).collect();
            let want: Vec<(&[u8], Option<&str>)> = vec![
                (b"a2", Some("two")),
                (b"b2", Some("one")),
                (b"c1", None),
                (b"n1", Some("three")),
            ];
            assert_eq!(values, want, "step {step}");
            assert_eq!(after["c"].3, Some(Duration::from_secs(60)), "step {step}");
            // A definite failure must not have happened.
            if let Err(error) = &result {
                assert!(error.is_unknown(), "step {step}: {error}");
            }
            new += 1;
        }
        // Watchers see exactly what happened.
        let mut watch = store.watch(&WatchRequest::default().after(1)).await.unwrap();
        let more = store.commit(Put::new(key("z"), "z")).await.unwrap().revision.unwrap();
        let mut revisions = vec![watch.next().await.unwrap().unwrap().revision];
        if page.revision == 2 {
            revisions.push(watch.next().await.unwrap().unwrap().revision);
        }
        assert_eq!(revisions, (2..=page.revision + 1).collect::<Vec<_>>());
        assert_eq!(more, page.revision + 1, "step {step}");
        assert_eq!(temp_files(world.folder.path()), Vec::<std::path::PathBuf>::new());
        store.close().await;
        if finished {
            break;
        }
    }
    assert!(old > 10 && new > 10, "old {old}, new {new}");
}

#[tokio::test]
async fn a_kill_at_any_step_of_a_commit_leaves_all_old_or_all_new() {
    crash_in_commit(End::Kill, 1 << 20).await;
}

#[tokio::test]
async fn a_power_cut_at_any_step_of_a_commit_leaves_all_old_or_all_new() {
    crash_in_commit(End::PowerCut, 1 << 20).await;
}

#[tokio::test]
async fn a_power_cut_that_spares_the_head_leaves_all_old_or_all_new() {
    crash_in_commit(End::PowerCutBehindHead, 1 << 20).await;
    crash_in_commit(End::PowerCutBehindHead, 1).await;
}

#[tokio::test]
async fn a_kill_at_any_step_of_a_rotation_loses_nothing() {
    crash_in_commit(End::Kill, 1).await;
}

#[tokio::test]
async fn a_power_cut_at_any_step_of_a_rotation_loses_nothing() {
    crash_in_commit(End::PowerCut, 1).await;
}

#[tokio::test]
async fn a_crash_at_any_step_of_a_touch_leaves_the_old_or_the_new_life() {
    for end in [End::Kill, End::PowerCut, End::PowerCutBehindHead] {
        for step in 0.. {
            let mut world = World::new(1 << 20);
            let before = prepare(&world).await;
            let crash = Arc::new(CrashPoint::new(None));
            let store = world.open_with(Some(Arc::clone(&crash))).unwrap();
            crash.arm(step);
            let ttl = Duration::from_secs(90);
            let touch = Touch { key: key("c"), revision: 1, ttl };
            let result = store.touch(vec![touch]).await.unwrap().remove(0);
            let finished = !crash.crashed();
            assert!(result.is_ok() || !finished, "step {step}: {result:?}");
            world.end(store, &crash, end).await;

            let store = world.open();
            let after = seen(&store).await;
            let life = after["c"].3.unwrap();
            // The touch may have happened just before the power went; its time was not noted then.
            let old = Duration::from_secs(if end == End::Kill { 59 } else { 60 });
            assert!(life == old || life >= ttl, "step {step}: {life:?}");
            assert_eq!(after.len(), before.len());
            if result.is_ok() {
                assert!(life >= ttl, "step {step}: {life:?}");
            }
            store.commit(Put::new(key("c"), "again")).await.unwrap();
            assert_eq!(temp_files(world.folder.path()), Vec::<std::path::PathBuf>::new());
            store.close().await;
            if finished {
                break;
            }
        }
    }
}

/// A store that died between the commit point and the end of a commit.
async fn half_done(end: End) -> World {
    let world = World::new(1 << 20);
    prepare(&world).await;
    let crash = Arc::new(CrashPoint::new(None));
    let store = world.open_with(Some(Arc::clone(&crash))).unwrap();
    let taken = crash.taken();
    store.commit(change()).await.unwrap();
    store.close().await;
    let steps = crash.taken() - taken;

    let mut world = World::new(1 << 20);
    prepare(&world).await;
    let crash = Arc::new(CrashPoint::new(None));
    let store = world.open_with(Some(Arc::clone(&crash))).unwrap();
    // Before the last renames, the flushes of the folders and the head.
    crash.arm(steps - 6);
    assert!(store.commit(change()).await.unwrap_err().is_unknown());
    world.end(store, &crash, end).await;
    world
}

#[tokio::test]
async fn a_crash_at_any_step_of_opening_and_recovering_is_recovered_in_turn() {
    for end in [End::Kill, End::PowerCut, End::PowerCutBehindHead] {
        for step in 0.. {
            let mut world = half_done(end).await;
            let crash = Arc::new(CrashPoint::new(Some(step)));
            if let Ok(store) = world.open_with(Some(Arc::clone(&crash))) {
                let _ = store.get(&key("a")).await;
                store.close().await;
            }
            let finished = !crash.crashed();
            world.lose(&crash, end);
            let store = world.open();
            let after = seen(&store).await;
            assert_eq!(after["a"].0, b"a2", "step {step}");
            assert_eq!(after.len(), 4);
            store.close().await;
            if finished {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_recovery_mends_damaged_files_that_history_knows() {
    let world = half_done(End::Kill).await;
    for id in ["a", "c", "d"] {
        std::fs::write(world.folder.path().join("objects/k").join(id), "garbage").unwrap();
    }
    let after = seen(&world.open()).await;
    assert_eq!((after["a"].0.as_slice(), after["c"].0.as_slice()), (&b"a2"[..], &b"c1"[..]));
    assert!(!after.contains_key("d"));
}

#[tokio::test]
async fn a_new_store_survives_a_crash_at_any_step_of_its_making() {
    for end in [End::Kill, End::PowerCut, End::PowerCutBehindHead] {
        for step in 0.. {
            let mut world = World::new(1 << 20);
            let crash = Arc::new(CrashPoint::new(Some(step)));
            if let Ok(store) = world.open_with(Some(Arc::clone(&crash))) {
                store.close().await;
            }
            let finished = !crash.crashed();
            world.lose(&crash, end);
            let store = world.open();
            assert_eq!(store.commit(Put::new(key("a"), "x")).await.unwrap().revision, Some(1));
            assert_eq!(temp_files(world.folder.path()), Vec::<std::path::PathBuf>::new());
            store.close().await;
            if finished {
                break;
            }
        }
    }
}

/// Whoever is killed leaves folders behind that nobody flushed; the next one builds on them.
#[tokio::test]
async fn what_is_committed_after_a_kill_at_any_step_survives_a_power_cut() {
    for step in 0.. {
        let mut world = World::new(1 << 20);
        prepare(&world).await;
        let crash = Arc::new(CrashPoint::new(None));
        let store = world.open_with(Some(Arc::clone(&crash))).unwrap();
        crash.arm(step);
        let _ = store.commit(change()).await;
        let finished = !crash.crashed();
        store.close().await;

        crash.next_process();
        let store = world.open_with(Some(Arc::clone(&crash))).unwrap();
        let (long, other) = (key(&"new".repeat(150)), Key::new("other", "y"));
        let again =
            Commit::new().put(Put::new(long.clone(), "n2")).put(Put::new(other.clone(), "y2"));
        store.commit(again).await.unwrap();
        store.close().await;
        world.lose(&crash, End::PowerCutBehindHead);

        let store = world.open();
        for (key, payload) in [(long, "n2"), (other, "y2")] {
            let found = store.get(&key).await.unwrap().map(|object| object.payload);
            assert_eq!(found.as_deref(), Some(payload.as_bytes()), "step {step}: {key}");
        }
        store.close().await;
        if finished {
            break;
        }
    }
}
