//! Many at once: tasks behind a barrier, threads with runtimes and handles of their own.

use std::sync::Arc;

use futures::future::BoxFuture;
use tenure::store::Store;
use tokio::sync::{Barrier, oneshot};
use tokio::task::JoinSet;

use crate::Failure;
use crate::context::Context;

/// Starts all tasks at the same moment; their results in order, or the first failure.
pub(crate) async fn all_at_once<T, F>(tasks: impl IntoIterator<Item = F>) -> Result<Vec<T>, Failure>
where
    F: Future<Output = Result<T, Failure>> + Send + 'static,
    T: Send + 'static,
{
    let tasks: Vec<F> = tasks.into_iter().collect();
    let barrier = Arc::new(Barrier::new(tasks.len().max(1)));
    // A set aborts what still runs when one of them fails.
    let mut set = JoinSet::new();
    for (place, task) in tasks.into_iter().enumerate() {
        let barrier = Arc::clone(&barrier);
        set.spawn(async move {
            barrier.wait().await;
            task.await.map(|value| (place, value))
        });
    }
    let mut results = Vec::new();
    while let Some(joined) = set.join_next().await {
        results.push(joined??);
    }
    results.sort_by_key(|(place, _)| *place);
    Ok(results.into_iter().map(|(_, value)| value).collect())
}

/// What a thread does with its own handle.
pub(crate) type OnThread<T> = fn(Store, Context, usize) -> BoxFuture<'static, Result<T, Failure>>;

/// Runs `work` on so many operating-system threads, each with its own runtime and its own handle,
/// starting together once all handles are open.
pub(crate) async fn on_threads<T: Send + 'static>(
    ctx: &Context,
    threads: usize,
    work: OnThread<T>,
) -> Result<Vec<T>, Failure> {
    let barrier = Arc::new(Barrier::new(threads));
    let mut answers = Vec::new();
    for place in 0..threads {
        let (ctx, barrier) = (ctx.clone(), Arc::clone(&barrier));
        let (sender, answer) = oneshot::channel();
        std::thread::spawn(move || {
            let result = on_runtime(async {
                let store = ctx.open_brief().await;
                barrier.wait().await;
                let store = store?;
                let result = work(store.clone(), ctx.clone(), place).await;
                ctx.close_brief(&store).await;
                result
            });
            let _ = sender.send(result);
        });
        answers.push(answer);
    }
    let mut results = Vec::new();
    for answer in answers {
        results.push(answer.await.map_err(|_| Failure::new("a thread panicked"))??);
    }
    Ok(results)
}

fn on_runtime<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
