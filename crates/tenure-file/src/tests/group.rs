//! Groups of commits: how much goes into one.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, try_join_all};

use crate::{FileStore, frame};
use tenure::Key;
use tenure::clock::Clock;
use tenure::store::Put;

/// A clock that no two readers read alike, so that history tells groups apart.
#[derive(Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn uptime(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn wall_ms(&self) -> i64 {
        0
    }

    fn sleep_until(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A delete is a small request, whatever it is that goes, and is told with what went.
#[tokio::test]
async fn large_objects_that_are_deleted_together_go_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileStore::options().clock(Arc::new(Ticking::default()));
    let store = options.open(folder.path()).unwrap().into_store();
    let keys: Vec<_> = (0..24).map(|n| Key::new("k", n.to_string())).collect();
    for key in &keys {
        store.commit(Put::new(key.clone(), vec![7; 1024 * 1024])).await.unwrap();
    }
    let gone = try_join_all(keys.iter().map(|key| store.delete(key))).await.unwrap();
    assert!(gone.iter().all(|gone| *gone), "{gone:?}");
    let mut groups: BTreeMap<i64, u64> = BTreeMap::new();
    for segment in std::fs::read_dir(folder.path().join("history")).unwrap() {
        let file = std::fs::File::open(segment.unwrap().path()).unwrap();
        let mut from = BufReader::new(file);
        while let Some(frame) = frame::read(&mut from).unwrap() {
            *groups.entry(frame.at_ms).or_default() += frame.len;
        }
    }
    let most = groups.values().max().copied().unwrap_or(0);
    assert!(most < 6 * 1024 * 1024, "{most} bytes in one group");
}
