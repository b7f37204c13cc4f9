//! The file store as a whole: several stores on one folder, time, damage.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use crate::{FileStore, HistoryLimits};
use tenure::clock::ManualClock;
use tenure::random::{SeededRandom, below};
use tenure::store::{
    Cause, Commit, Event, Expect, Put, Query, Selector, Store, Touch, WatchRequest,
};
use tenure::{Error, Key};

fn key(id: &str) -> Key {
    Key::new("order", id)
}

fn open(folder: &Path) -> Store {
    FileStore::open(folder).unwrap().into_store()
}

fn open_at(folder: &Path, clock: &ManualClock, boot: &str) -> Store {
    let options = FileStore::options().clock(Arc::new(clock.clone())).boot_id(boot);
    options.open(folder).unwrap().into_store()
}

#[tokio::test]
async fn a_person_can_read_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let put = Put::new(key("1001"), "paid").name("first").label("zone", "a");
    store.commit(put).await.unwrap();
    let text = std::fs::read_to_string(folder.path().join("objects/order/1001")).unwrap();
    assert!(text.starts_with(r#"{"tenure":1,"kind":"order","id":"1001","name":"first""#), "{text}");
    assert!(text.ends_with("}\npaid"), "{text}");
    let name = std::fs::read_to_string(folder.path().join("names/order/first")).unwrap();
    assert!(name.contains(r#""id":"1001""#), "{name}");
}

#[tokio::test]
async fn odd_ids_stay_apart_and_in_bytewise_order() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let long = ["ä".repeat(256), "x".repeat(512), "x".repeat(511), ".".repeat(300)];
    let mut ids = vec!["../x", "a/b", ".", "..", "~", "a~", "ü", "☃", "A", "a", "a b", ".tmp-1-1"];
    ids.extend(long.iter().map(String::as_str));
    for id in &ids {
        store.commit(Put::new(key(id), (*id).to_owned())).await.unwrap();
    }
    ids.sort_unstable();
    let listed = store.list_all(&Query::new("order").limit(3)).await.unwrap();
    assert_eq!(listed.iter().map(|o| o.key.id.as_str()).collect::<Vec<_>>(), ids);
    for id in &ids {
        assert_eq!(store.get(&key(id)).await.unwrap().unwrap().payload, *id);
        store.commit(Commit::new().delete(key(id), Expect::Exists)).await.unwrap();
    }
    assert!(store.list_all(&Query::new("order")).await.unwrap().is_empty());
    // Nothing was written outside, and the folders of long ids are gone.
    let left = std::fs::read_dir(folder.path().join("objects/order")).unwrap().count();
    assert_eq!(left, 0);
    assert!(!folder.path().join("objects/x").exists());
}

#[tokio::test]
async fn two_stores_on_one_folder_see_each_other_and_never_lose_an_update() {
    let folder = tempfile::tempdir().unwrap();
    let stores = [open(folder.path()), open(folder.path())];
    let counter = key("counter");
    stores[0].commit(Put::new(counter.clone(), "0")).await.unwrap();
    let worker = |n: usize| {
        let (store, counter) = (stores[n % 2].clone(), counter.clone());
        async move {
            for _ in 0..10 {
                loop {
                    let now = store.get(&counter).await.unwrap().unwrap();
                    let value: u64 = std::str::from_utf8(&now.payload).unwrap().parse().unwrap();
                    let put = Put::new(counter.clone(), (value + 1).to_string());
                    match store.commit(put.expect(Expect::Revision(now.revision))).await {
                        Ok(_) => break,
                        Err(error) => assert!(error.is_conflict(), "{error}"),
                    }
                }
            }
        }
    };
    join_all((0..8).map(worker)).await;
    for store in &stores {
        let end = store.get(&counter).await.unwrap().unwrap();
        assert_eq!((end.payload.as_ref(), end.version), (b"80".as_slice(), 81));
    }
}

#[tokio::test]
async fn a_watch_sees_the_other_stores_commits_in_order_without_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (open(folder.path()), open(folder.path()));
    one.commit(Put::new(key("0"), "")).await.unwrap();
    let mut watch = two.watch(&WatchRequest::default().after(0)).await.unwrap();
    let write = |store: Store, who: &'static str| async move {
        for n in 0..40 {
            store.commit(Put::new(key(&format!("{who}-{n}")), "x")).await.unwrap();
        }
    };
    let read = async {
        for expected in 1..=81 {
            let batch = watch.next().await.unwrap().unwrap();
            assert_eq!(batch.revision, expected);
            assert!(batch.events.iter().all(|event| !event.key().id.starts_with('.')));
        }
    };
    tokio::join!(write(one.clone(), "one"), write(two.clone(), "two"), read);
    one.close().await;
    assert!(one.get(&key("0")).await.is_err());
    assert!(one.commit(Put::new(key("0"), "")).await.is_err());
    assert!(two.get(&key("0")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_life_survives_reboots_and_ignores_the_wall_clock() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let store = open_at(folder.path(), &clock, "boot-1");
    let lease = key("lease");
    store.commit(Put::new(lease.clone(), "me").ttl(Duration::from_secs(30))).await.unwrap();
    clock.step_wall(86_400_000);
    clock.advance(Duration::from_secs(20));
    let left = async |store: &Store| {
        store.get(&lease).await.unwrap().map(|object| object.expires_in.unwrap().as_secs())
    };
    assert_eq!(left(&store).await, Some(10));
    // A touch notes the time, so that a reboot goes on from there.
    let touch = Touch { key: lease.clone(), revision: 1, ttl: Duration::from_secs(40) };
    store.touch(vec![touch]).await.unwrap().remove(0).unwrap();
    clock.advance(Duration::from_secs(5));
    store.commit(Put::new(key("other"), "x")).await.unwrap();
    store.close().await;

    let rebooted = ManualClock::new();
    rebooted.step_wall(-86_400_000);
    let store = open_at(folder.path(), &rebooted, "boot-2");
    assert_eq!(left(&store).await, Some(35));
    rebooted.advance(Duration::from_secs(34));
    assert_eq!(left(&store).await, Some(1));
    // Another process of the same boot is on the same timeline.
    let second = open_at(folder.path(), &rebooted, "boot-2");
    rebooted.advance(Duration::from_millis(1_001));
    assert_eq!((left(&store).await, left(&second).await), (None, None));
    let again = Put::new(lease.clone(), "you").expect(Expect::Absent);
    let committed = second.commit(again).await.unwrap();
    assert_eq!(committed.revision, Some(4), "the expired lease ended with a revision of its own");
}

#[tokio::test]
async fn watchers_hear_of_an_expiry_even_if_another_store_made_the_object() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (open(folder.path()), open(folder.path()));
    let life = Duration::from_millis(60);
    one.commit(Put::new(key("before"), "x").ttl(life)).await.unwrap();
    let mut watch = two.watch(&WatchRequest::default()).await.unwrap();
    one.commit(Put::new(key("after"), "x").ttl(life)).await.unwrap();
    let mut gone = Vec::new();
    while gone.len() < 2 {
        let batch = watch.next().await.unwrap().unwrap();
        for event in &batch.events {
            if let Event::Delete { key, cause, last } = event {
                assert_eq!((*cause, last.is_some()), (Cause::Expired, true));
                gone.push(key.id.clone());
            }
        }
    }
    gone.sort_unstable();
    assert_eq!(gone, ["after", "before"]);
    assert_eq!(std::fs::read_dir(folder.path().join("objects/order")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_damaged_file_concerns_its_object_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for id in ["a", "b"] {
        store.commit(Put::new(key(id), "text")).await.unwrap();
    }
    let path = folder.path().join("objects/order/a");
    let good = std::fs::read(&path).unwrap();
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    for error in [
        store.get(&key("a")).await.unwrap_err(),
        store.commit(Put::new(key("a"), "new")).await.unwrap_err(),
        store.list(&Query::new("order")).await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(matches!(error, Error::Corrupt { .. }), "{text}");
        assert!(text.contains("objects/order/a") && text.contains("move the file away"), "{text}");
    }
    store.commit(Put::new(key("b"), "new")).await.unwrap();
    std::fs::write(&path, good).unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().payload, "text");
}

#[tokio::test]
async fn leftovers_of_a_crash_are_never_listed_and_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.commit(Put::new(key("a"), "x")).await.unwrap();
    let temp = folder.path().join("objects/order/.tmp-0123456789ab-7");
    std::fs::write(&temp, "half an obj").unwrap();
    assert_eq!(store.list_all(&Query::new("order")).await.unwrap().len(), 1);
    let second = open(folder.path());
    second.commit(Put::new(key("b"), "x")).await.unwrap();
    assert!(!temp.exists());
}

#[tokio::test]
async fn history_is_forgotten_by_age_and_a_late_watch_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let limits = HistoryLimits { segment_bytes: 2_000, ..HistoryLimits::default() };
    let options = FileStore::options().clock(Arc::new(clock.clone())).history(limits);
    let store = options.open(folder.path()).unwrap().into_store();
    let mut early = store.watch(&WatchRequest::default()).await.unwrap();
    for n in 0..60 {
        clock.advance(Duration::from_secs(20));
        store.commit(Put::new(key("a"), n.to_string())).await.unwrap();
    }
    let segments = std::fs::read_dir(folder.path().join("history")).unwrap().count();
    assert!(segments < 14, "{segments}");
    for expected in 1..=60 {
        assert_eq!(early.next().await.unwrap().unwrap().revision, expected);
    }
    // Another process has not seen any of it; its watchers read it from history.
    let other = open_at(folder.path(), &clock, &tenure::clock::boot_id());
    let mut recent = other.watch(&WatchRequest::default().after(31)).await.unwrap();
    for expected in 32..=60 {
        assert_eq!(recent.next().await.unwrap().unwrap().revision, expected);
    }
    let mut late = other.watch(&WatchRequest::default().after(3)).await.unwrap();
    let error = late.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Compacted { requested: 3, .. }), "{error}");
}

#[tokio::test]
async fn a_process_that_was_away_too_long_tells_its_watchers() {
    let folder = tempfile::tempdir().unwrap();
    let limits = HistoryLimits { bytes: 4_000, segment_bytes: 1_000, ..HistoryLimits::default() };
    // It never looks by itself: its poll is an hour away and its watcher is stopped.
    let sleeper = FileStore::options().poll_every(Duration::from_secs(3600)).open(folder.path());
    let sleeper = sleeper.unwrap();
    let watching = Arc::clone(&sleeper.watching);
    let sleeper = sleeper.into_store();
    let mut watch = sleeper.watch(&WatchRequest::default()).await.unwrap();
    tokio::task::spawn_blocking(move || watching.stop()).await.unwrap();
    let busy = FileStore::options().history(limits).open(folder.path()).unwrap().into_store();
    for n in 0..60 {
        busy.commit(Put::new(key("a"), n.to_string())).await.unwrap();
    }
    let mut fresh = sleeper.watch(&WatchRequest::default()).await.unwrap();
    assert_eq!(fresh.start(), 60);
    let error = watch.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Compacted { requested: 0, .. }), "{error}");
    busy.commit(Put::new(key("b"), "")).await.unwrap();
    assert_eq!(fresh.next().await.unwrap().unwrap().revision, 61);
}

#[tokio::test]
async fn foreign_folders_and_newer_stores_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("thesis.tex"), "").unwrap();
    let error = FileStore::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("thesis.tex") && error.contains("folder of its own"), "{error}");
    std::fs::remove_file(folder.path().join("thesis.tex")).unwrap();
    drop(FileStore::open(folder.path()).unwrap());
    let format = folder.path().join("store.json");
    let text = std::fs::read_to_string(&format).unwrap();
    std::fs::write(&format, text.replace("\"min_writer\":1", "\"min_writer\":9")).unwrap();
    let error = FileStore::open(folder.path()).err().unwrap();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    // Where programs below our level may write, they may no longer once we have been there.
    std::fs::write(&format, text.replace("\"min_writer\":1", "\"min_writer\":0")).unwrap();
    drop(FileStore::open(folder.path()).unwrap());
    assert_eq!(std::fs::read_to_string(&format).unwrap(), text);
}

#[tokio::test]
async fn a_newer_program_that_opens_the_store_keeps_us_from_writing_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let life = Duration::from_secs(60);
    let revision = store.commit(Put::new(key("a"), "1").ttl(life)).await.unwrap().revision.unwrap();
    let format = folder.path().join("store.json");
    let text = std::fs::read_to_string(&format).unwrap();
    let replace = |text: &str| {
        let next = folder.path().join("store.next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(&next, &format).unwrap();
    };
    replace(&text.replace("\"min_writer\":1", "\"min_writer\":9"));
    let touch = Touch { key: key("a"), revision, ttl: life };
    let refused = store.commit(Put::new(key("a"), "2")).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    let refused = store.touch(vec![touch.clone()]).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().payload.as_ref(), b"1");
    replace(&text);
    store.commit(Put::new(key("b"), "2")).await.unwrap();
    store.touch(vec![touch]).await.unwrap().remove(0).unwrap();
}

#[tokio::test]
async fn pages_are_bounded_and_complete() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for chunk in (0..300).collect::<Vec<_>>().chunks(100) {
        let put =
            |n: &i32| Put::new(key(&format!("{n:04}")), "x").label("odd", (n % 2).to_string());
        let commit = chunk.iter().map(put).fold(Commit::new(), Commit::put);
        store.commit(commit).await.unwrap();
    }
    let odd = Query::new("order").selector(Selector::equals("odd", "1")).limit(7);
    assert_eq!(store.list_all(&odd).await.unwrap().len(), 150);
    let some = Query::new("order").prefix("00").from("0010").until("0020").limit(4);
    assert_eq!(store.list_all(&some).await.unwrap().len(), 10);
}

#[tokio::test]
async fn random_commits_agree_with_the_memory_store() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let file = open_at(folder.path(), &clock, "boot");
    let memory =
        tenure::store::memory::MemoryStore::with_clock(Arc::new(clock.clone())).into_store();
    let random = SeededRandom::new(7);
    let pick = |bound| below(&random, bound);
    for round in 0..300 {
        let mut commit = Commit::new();
        for id in 0..4 {
            let id = key(&id.to_string());
            let expect = [Expect::Any, Expect::Any, Expect::Any, Expect::Absent, Expect::Exists];
            let expect = expect[usize::try_from(pick(5)).unwrap()];
            match pick(4) {
                0 => commit = commit.delete(id, expect),
                1 => {
                    let mut put = Put::new(id, pick(3).to_string()).expect(expect);
                    if pick(2) == 0 {
                        put = put.name(format!("name-{}", pick(3)));
                    }
                    if pick(3) == 0 {
                        put = put.ttl(Duration::from_millis(30));
                    }
                    commit = commit.put(put);
                }
                _ => {}
            }
        }
        let (a, b) = (file.commit(commit.clone()).await, memory.commit(commit.clone()).await);
        let text = |r: tenure::Result<_>| format!("{:?}", r.map_err(|e| e.to_string()));
        // The memory store sweeps after each commit, this one with it: revisions may differ by the
        // sweeps, so all is swept by both before the next round.
        if a.is_err() || b.is_err() {
            assert_eq!(a.is_err(), b.is_err(), "round {round}: {commit:?}");
            let code = |r: &tenure::Result<_>| r.as_ref().map_err(Error::code).err();
            assert_eq!(code(&a), code(&b), "{} {}", text(a), text(b));
        }
        clock.advance(Duration::from_millis(pick(20)));
        let all = Query::new("order");
        let ids = |objects: Vec<tenure::Object>| -> Vec<_> {
            let view = |o: tenure::Object| (o.key, o.name, o.payload, o.version, o.expires_in);
            objects.into_iter().map(view).collect()
        };
        let (a, b) = (file.list_all(&all).await.unwrap(), memory.list_all(&all).await.unwrap());
        assert_eq!(ids(a), ids(b), "round {round}");
    }
}

/// A touch that was decided in time and is not on the disk yet when the old life ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_being_prolonged_does_not_seem_gone_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let (store, other) =
        (open_at(folder.path(), &clock, "boot"), open_at(folder.path(), &clock, "boot"));
    let life = Duration::from_secs(1);
    let mut revision = None;
    for _ in 0..40 {
        let put = Put::new(key("a"), "x").ttl(life);
        revision = store.commit(put).await.unwrap().revision.or(revision);
        clock.advance(life - Duration::from_millis(1));
        let touch = Touch { key: key("a"), revision: revision.unwrap(), ttl: life };
        let touching = tokio::spawn({
            let store = store.clone();
            async move { store.touch(vec![touch]).await.unwrap().remove(0) }
        });
        let step = clock.clone();
        tokio::task::yield_now().await;
        step.advance(Duration::from_millis(2));
        let (read, listed) = (
            other.get(&key("a")).await.unwrap(),
            other.list_all(&Query::new("order")).await.unwrap(),
        );
        if touching.await.unwrap().is_ok() {
            assert!(read.is_some() && !listed.is_empty(), "gone while it was prolonged");
        } else {
            assert!(read.is_none() && listed.is_empty());
            revision = None;
        }
        clock.advance(life * 2);
    }
}
