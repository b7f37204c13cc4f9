//! Slots on disk: one canonical file for each that is held, and none for one that is not.

use std::path::Path;
use std::time::Duration;

use crate::FileStore;
use tenure::lease::{Coordinator, Namespace, SlotLease, Terms};

fn coordinator(folder: &Path, name: &str) -> Coordinator {
    let store = FileStore::open(folder).unwrap().into_store();
    Coordinator::builder(store).name(name).start().unwrap()
}

/// The files of leases, temp files included, in order.
fn files(folder: &Path) -> Vec<String> {
    let folder = std::fs::read_dir(folder.join("objects/lease")).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = folder.map(|e| name(e).into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

async fn acquire(coordinator: &Coordinator) -> Option<SlotLease> {
    let group: Namespace = "pool.gpu".parse().unwrap();
    let terms = Terms::new().ttl(Duration::from_secs(60));
    coordinator.acquire_slot(&group, 2, &terms).await.unwrap()
}

#[tokio::test]
async fn a_slot_is_a_file_for_as_long_as_it_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (a, b) = (coordinator(folder, "a"), coordinator(folder, "b"));
    let (first, second) = (acquire(&a).await.unwrap(), acquire(&b).await.unwrap());
    assert_eq!(files(folder), ["pool.gpu%2Fslot-0", "pool.gpu%2Fslot-1"]);
    assert!(acquire(&b).await.is_none(), "a third of two");
    assert_eq!(files(folder).len(), 2, "a refusal leaves nothing behind");
    for (slot, holder) in [(&first, "a"), (&second, "b")] {
        let file = format!("objects/lease/pool.gpu%2Fslot-{}", slot.index());
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let head = format!(r#"{{"tenure":1,"kind":"lease","id":"pool.gpu/slot-{}""#, slot.index());
        assert!(text.starts_with(&head), "{text}");
        let (_, payload) = text.split_once('\n').unwrap();
        let record: serde_json::Value = serde_json::from_str(payload).unwrap();
        assert_eq!(record["holder"], holder);
    }
    let (index, token) = (first.index(), first.token());
    first.into_lease().release().await.unwrap();
    assert_eq!(files(folder), [format!("pool.gpu%2Fslot-{}", second.index())]);
    let again = acquire(&b).await.unwrap();
    assert_eq!(again.index(), index, "the one that is free");
    assert!(again.token() > token, "{} after {token}", again.token());
    assert_eq!(files(folder).len(), 2);
    let group = std::fs::read_to_string(folder.join("objects/lease-slots/pool.gpu")).unwrap();
    assert!(group.contains(r#""count":2"#), "{group}");
}
