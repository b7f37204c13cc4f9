//! A store that can do little passes the behaviours about that little, and the rest does not apply.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use tenure::backend::Backend;
use tenure::store::memory::MemoryStore;
use tenure::store::{
    Capabilities, Commit, Committed, Page, Query, Store, Touch, Touched, Ttl, Watch, WatchRequest,
};
use tenure::{Key, Limits, Object, Result};
use tenure_conformance::{Outcome, Subject, behaviours, run_one};

/// Memory behind modest promises: one object a commit, whole seconds, no names, labels or history.
struct Modest {
    inner: MemoryStore,
    capabilities: Capabilities,
}

impl Modest {
    fn new() -> Self {
        let inner = MemoryStore::new();
        let second = Duration::from_secs(1);
        let capabilities = Capabilities {
            backend: "modest",
            multi_object_commits: false,
            names: false,
            labels: false,
            history: None,
            ttl: Some(Ttl { min: second, granularity: second }),
            limits: Limits { page_objects: 200, payload_bytes: 4096, ..Limits::DEFAULT },
            ..inner.capabilities().clone()
        };
        Self { inner, capabilities }
    }
}

#[async_trait]
impl Backend for Modest {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        self.inner.get(key).await
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.inner.list(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        assert!(commit.checks.len() + commit.writes.len() <= 1, "more than it claims to do");
        self.inner.commit(commit).await
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        self.inner.touch(touches).await
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        assert!(request.after.is_none(), "a watch from the past, which it does not claim");
        self.inner.watch(request).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_modest_store_passes_what_applies_to_it() {
    let backend: Arc<dyn Backend> = Arc::new(Modest::new());
    let subject = Subject::new(Arc::new(move || {
        let store = Store::from_arc(Arc::clone(&backend));
        Box::pin(async move { Ok(store) })
    }));
    let running = behaviours().into_iter().map(|behaviour| {
        let subject = subject.clone();
        async move { run_one(&subject, &behaviour).await }
    });
    let reports: Vec<_> = futures::stream::iter(running).buffer_unordered(16).collect().await;
    let (mut others, all) = (0, reports.len());
    for report in reports {
        match report.outcome {
            Outcome::Passed => {}
            Outcome::NotApplicable(why) => {
                assert!(!why.is_empty());
                others += 1;
            }
            Outcome::Failed(why) => panic!("{}: {why}", report.name),
        }
    }
    // Much of the suite is about what it does not claim, and yet most of it applies.
    assert!((30..95).contains(&others), "{others} of {all} do not apply");
}
