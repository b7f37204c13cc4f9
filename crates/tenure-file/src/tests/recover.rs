//! What one process left behind and another one recovered: it survives a power cut, and it is told where
//! it cannot be.

use std::sync::Arc;

use super::crash::{End, World, change, key, prepare, seen};
use crate::crash::CrashPoint;
use tenure::store::{Commit, Expect, Put, Query, Store};

/// What is left of the objects: id, payload, name and revision.
type Left = Vec<(String, Vec<u8>, Option<String>, u64)>;

async fn left(store: &Store) -> (Left, u64) {
    let seen = seen(store).await;
    let left = seen.into_iter().map(|(id, v)| (id, v.0, v.1, v.2)).collect();
    (left, store.list(&Query::new("other")).await.unwrap().revision)
}

/// One process is killed before any step of a commit, the next one goes on, and then the power goes:
/// what the second one found and did is still so.
async fn kill_then_power_cut(change: fn() -> Commit, end: End, segment_bytes: u64, goes_on: bool) {
    for step in 0.. {
        let mut world = World::new(segment_bytes);
        prepare(&world).await;
        let crash = Arc::new(CrashPoint::new(None));
        let store = world.open_with(Some(Arc::clone(&crash))).unwrap();
        crash.arm(step);
        let _ = store.commit(change()).await;
        let finished = !crash.crashed();
        world.end(store, &crash, End::Kill).await;

        crash.next_process();
        let store = world.open_with(Some(Arc::clone(&crash))).unwrap();
        if goes_on {
            store.commit(Put::new(key("e"), "e1")).await.unwrap();
        }
        let before = left(&store).await;
        world.end(store, &crash, end).await;

        let store = world.open();
        assert_eq!(left(&store).await, before, "step {step} {end:?} {goes_on}");
        let next = store.commit(Put::new(key("z"), "z")).await.unwrap().revision;
        assert_eq!(next, Some(before.1 + 1), "step {step}: a revision was drawn twice");
        store.close().await;
        if finished {
            break;
        }
    }
}

fn deletes() -> Commit {
    Commit::new().delete(key("d"), Expect::Exists).delete(key("a"), Expect::Exists)
}

#[tokio::test]
async fn what_was_recovered_after_a_kill_survives_a_power_cut() {
    for end in [End::PowerCut, End::PowerCutBehindHead] {
        for goes_on in [false, true] {
            kill_then_power_cut(change, end, 1 << 20, goes_on).await;
        }
        kill_then_power_cut(deletes, end, 1 << 20, false).await;
    }
}

#[tokio::test]
async fn a_rotation_recovered_after_a_kill_survives_a_power_cut() {
    for end in [End::PowerCut, End::PowerCutBehindHead] {
        for goes_on in [false, true] {
            kill_then_power_cut(change, end, 1, goes_on).await;
        }
    }
}

/// A folder that was copied while it was in use: the head is newer than the history beside it.
#[tokio::test]
async fn history_shorter_than_the_head_is_told_and_nothing_is_made_up() {
    let world = World::new(1 << 20);
    let before = prepare(&world).await;
    let folder = world.folder.path().join("history");
    let segment = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&segment).unwrap();
    std::fs::write(&segment, &whole[..whole.len() - 10]).unwrap();
    for _ in 0..2 {
        let error = world.open_with(None).unwrap_err();
        assert!(matches!(error, tenure::Error::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("good copy"), "{error}");
        assert_eq!(std::fs::read(&segment).unwrap().len(), whole.len() - 10);
    }
    std::fs::write(&segment, &whole).unwrap();
    assert_eq!(seen(&world.open()).await, before);

    // The same where the newest segment is missing.
    let world = World::new(1);
    prepare(&world).await;
    let store = world.open();
    assert_eq!(store.commit(change()).await.unwrap().revision, Some(2));
    store.close().await;
    std::fs::remove_file(world.folder.path().join("history").join(format!("{:020}.log", 1)))
        .unwrap();
    let error = world.open_with(None).unwrap_err();
    assert!(matches!(error, tenure::Error::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("revision 2"), "{error}");
}
