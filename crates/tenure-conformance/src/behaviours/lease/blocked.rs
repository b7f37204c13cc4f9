//! A program that blocks its own runtime: what holds its leases must not depend on it.

use tenure::lease::{Coordinator, Scope, Terms};
use tenure::store::{Commit, Put};
use tokio::sync::oneshot;

use super::leases::soon;
use crate::context::Context;
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![behaviour!(
        a_program_that_blocks_its_runtime_keeps_its_lease,
        [multi, ttl, real_time],
        "renewals run on a thread of their own, and so does all they need of the store"
    )]
}

async fn a_program_that_blocks_its_runtime_keeps_its_lease(ctx: Context) -> Result<(), Failure> {
    let (scope, program) = (ctx.scope("blocked")?, ctx.clone());
    let (told, answer) = oneshot::channel();
    // Not on this runtime, whose other threads would do what the blocked one leaves undone.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = runtime
            .map_err(Failure::from)
            .and_then(|runtime| runtime.block_on(hold_and_block(program, scope)));
        // Whoever asked may have given up.
        let _ = told.send(result);
    });
    let result = soon("a program that blocks", answer).await?;
    result.map_err(|_| Failure::new("the program that blocks panicked"))?
}

async fn hold_and_block(ctx: Context, scope: Scope) -> Result<(), Failure> {
    // Opened here: tasks that the store may start belong to this runtime, too.
    let store = ctx.open_brief().await?;
    let coordinator = Coordinator::builder(store.clone()).name("blocked").start()?;
    let life = ctx.ttl_of(ctx.life() * 4 / 3);
    let lease = coordinator.acquire(&scope, &Terms::new().ttl(life)).await?;
    let blocked = tokio::spawn(async move {
        std::thread::sleep(life * 3);
        // Asked before anybody else gets a chance to run here.
        (lease.loss(), lease)
    });
    let (loss, lease) = blocked.await?;
    ensure_in_time!(loss.is_none(), "lost within three lives: {loss:?}");
    ensure!(coordinator.metrics().renewed.get() >= 3, "it was not renewed meanwhile");
    let write = Put::new(ctx.key("written"), lease.token().to_string());
    store.commit(Commit::from(write).fenced_by(&lease)).await?;
    lease.release().await?;
    ctx.close_brief(&store).await;
    Ok(())
}
