//! Slots over gRPC.

use anyhow::{Context, Result, ensure};
use tenure_proto::v1;
use tenure_proto::v1::slots_client::SlotsClient;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::serving::{Serving, end_of, eventually, on_each, release, terms, told, waiting};

const GROUP: &str = "search.indexer";

type Slots = SlotsClient<Channel>;

async fn acquire(slots: &Slots, terms: v1::Terms) -> Result<(v1::LeaseGrant, u32), Status> {
    let request = v1::AcquireSlotRequest { group: GROUP.into(), count: 2, terms: Some(terms) };
    let granted = slots.clone().acquire(request).await?.into_inner();
    let grant = granted.grant.ok_or_else(|| Status::internal("no grant"))?;
    Ok((grant, granted.index))
}

fn asking(slots: &Slots, terms: v1::Terms) -> JoinHandle<Result<(v1::LeaseGrant, u32), Status>> {
    let slots = slots.clone();
    tokio::spawn(async move { acquire(&slots, terms).await })
}

async fn show(slots: &Slots) -> Result<v1::ShowSlotsResponse, Status> {
    let request = v1::ShowSlotsRequest { group: GROUP.into() };
    Ok(slots.clone().show(request).await?.into_inner())
}

async fn in_line(slots: &Slots, count: usize) -> Result<()> {
    let look = || async { Ok(show(slots).await?.waiters.len() == count) };
    eventually(&format!("{count} wait"), look).await
}

async fn resize(slots: &Slots, count: u32) -> Result<(), Status> {
    let request = v1::ResizeRequest { group: GROUP.into(), count, expect_version: None };
    slots.clone().resize(request).await.map(drop)
}

#[tokio::test]
async fn as_many_as_there_are_and_more_after_a_resize_which_evicts_nobody() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let (here, there) = (a.slots().await?, b.slots().await?);
        ensure!(show(&here).await?.count.is_none(), "no such group yet");
        let (first, one) = acquire(&here, terms("a#1")).await?;
        let (_, two) = acquire(&there, terms("b#1")).await?;
        ensure!(one != two && first.queue == GROUP, "{one} {two} {first:?}");
        told(acquire(&here, terms("c#1")).await, Code::FailedPrecondition, "held")?;
        // The same owner asking again gets the slot it has.
        ensure!(acquire(&there, terms("a#1")).await?.1 == one);
        let third = asking(&there, waiting("c#1"));
        in_line(&here, 1).await?;
        resize(&here, 3).await?;
        let (_, three) = end_of(third).await??;
        ensure!(![one, two].contains(&three));
        resize(&there, 1).await?;
        let shown = show(&here).await?;
        ensure!(shown.count == Some(1) && shown.holders.len() == 3, "{shown:?}");
        let mut holders: Vec<_> = shown.holders.iter().filter_map(|s| s.lease.as_ref()).collect();
        holders.sort_by(|a, b| a.holder.cmp(&b.holder));
        let names: Vec<_> = holders.iter().map(|lease| &*lease.holder).collect();
        ensure!(names == ["a#1", "b#1", "c#1"], "{names:?}");
        // The place of one that leaves is not filled again.
        release(&a.leases().await?, &first).await?;
        told(acquire(&here, terms("d#1")).await, Code::FailedPrecondition, "held")?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_slot_is_renewed_and_handed_over_by_its_grant_at_another_replica() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let slots = a.slots().await?;
        let mut leases = b.leases().await?;
        let (grant, index) = acquire(&slots, terms("a#1")).await?;
        acquire(&slots, terms("b#1")).await?;
        let renew = v1::RenewRequest { grants: vec![grant.clone()] };
        let renewed = leases.renew(renew).await?.into_inner().renewed;
        let outcome = renewed.into_iter().next().and_then(|one| one.outcome).context("one")?;
        ensure!(matches!(outcome, v1::renewed::Outcome::Renewal(_)), "{outcome:?}");
        let waiter = asking(&slots, waiting("c#1"));
        in_line(&slots, 1).await?;
        let request = v1::HandOverRequest { grant: Some(grant.clone()), successor: "c#1".into() };
        leases.hand_over(request).await?;
        let (passed_on, same) = end_of(waiter).await??;
        ensure!(same == index && passed_on.token > grant.token && passed_on.owner == "c#1");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_is_no_group_or_no_count_is_named() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let mut slots = server.slots().await?;
        let request = v1::ShowSlotsRequest { group: "a/b".into() };
        let error = told(slots.show(request).await, Code::InvalidArgument, "invalid")?;
        ensure!(error.message.contains("a/b"), "{error:?}");
        let none =
            v1::AcquireSlotRequest { group: GROUP.into(), count: 0, terms: Some(terms("a#1")) };
        let error = told(slots.acquire(none).await, Code::InvalidArgument, "invalid")?;
        ensure!(error.message.contains("slot count 0"), "{error:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_resize_that_rests_on_what_has_changed_since_is_refused() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let slots = server.slots().await?;
        let resize_from = |version, count| {
            let (mut slots, group) = (slots.clone(), GROUP.into());
            let request = v1::ResizeRequest { group, count, expect_version: Some(version) };
            async move { slots.resize(request).await }
        };
        ensure!(show(&slots).await?.version.is_none());
        told(resize_from(1, 4).await, Code::NotFound, "not_found")?;
        resize(&slots, 3).await?;
        let seen = show(&slots).await?.version.context("a version")?;
        resize(&slots, 5).await?;
        told(resize_from(seen, 4).await, Code::Aborted, "conflict")?;
        let now = show(&slots).await?;
        ensure!(now.count == Some(5), "{now:?}");
        resize_from(now.version.context("a version")?, 4).await?;
        ensure!(show(&slots).await?.count == Some(4));
        Ok(())
    })
    .await
}
