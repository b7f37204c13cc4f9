//! Slots: never more holders than there may be, while that number changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::Error;
use tenure::lease::{Coordinator, Namespace, SlotLease, Terms};
use tokio::task::JoinHandle;

use super::leases::{refused, soon, terms};
use crate::context::{Context, PATIENCE};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_group_has_as_many_holders_as_slots,
            [ttl, real_time],
            "many ask at once: each slot goes to one of them, the others get none"
        ),
        behaviour!(
            slots_are_never_overbooked,
            [ttl, real_time],
            "while many acquire and release in turn"
        ),
        behaviour!(
            a_group_grows_while_it_is_held,
            [multi, ttl, real_time],
            "whoever waits gets the new slot at once"
        ),
        behaviour!(
            a_group_shrinks_without_evicting,
            [multi, ttl, real_time],
            "nothing is refilled until fewer are held than the new count"
        ),
        behaviour!(
            a_slot_is_handed_over,
            [multi, ttl, real_time, told],
            "to a waiter by name, the same slot under a greater token"
        ),
        behaviour!(
            a_shrunk_group_is_not_refilled_by_a_hand_over,
            [multi, ttl, real_time, told],
            "it is refused, by name, until no more are held than the new count"
        ),
    ]
}

async fn a_group_has_as_many_holders_as_slots(ctx: Context) -> Result<(), Failure> {
    let group = ctx.namespace("workers")?;
    let mut tasks = Vec::new();
    for n in 0..4 {
        let coordinator = ctx.coordinator(&format!("c{n}")).await?;
        for _ in 0..2 {
            let (coordinator, group, terms) = (coordinator.clone(), group.clone(), terms(&ctx));
            tasks.push(async move { Ok(coordinator.acquire_slot(&group, 3, &terms).await?) });
        }
    }
    let slots: Vec<SlotLease> = all_at_once(tasks).await?.into_iter().flatten().collect();
    let indexes: BTreeSet<u32> = slots.iter().map(SlotLease::index).collect();
    ensure_eq!((slots.len(), indexes), (3, BTreeSet::from([0, 1, 2])), "slots");
    let other = ctx.coordinator("other").await?;
    let holders = other.list_holders(&group).await?;
    ensure_eq!(holders.len(), 3, "holders");
    ensure!(other.acquire_slot(&group, 3, &terms(&ctx)).await?.is_none(), "a fourth of three");
    for slot in slots {
        slot.renew().await?;
        slot.into_lease().release().await?;
    }
    let again = other.acquire_slot(&group, 3, &terms(&ctx)).await?.ok_or("none though all free")?;
    Ok(again.into_lease().release().await?)
}

async fn slots_are_never_overbooked(ctx: Context) -> Result<(), Failure> {
    let group = ctx.namespace("booked")?;
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for n in 0..3 {
        let coordinator = ctx.coordinator(&format!("c{n}")).await?;
        for _ in 0..2 {
            let (coordinator, group) = (coordinator.clone(), group.clone());
            let (inside, terms) = (Arc::clone(&inside), terms(&ctx).wait(PATIENCE * 2));
            tasks.push(async move {
                for _ in 0..4 {
                    let slot = coordinator.slots(&group).acquire(2, &terms).await?;
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    ensure!(now <= 2, "{now} holders of two slots");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    slot.into_lease().release().await?;
                }
                Ok(())
            });
        }
    }
    all_at_once(tasks).await?;
    Ok(())
}

async fn a_group_grows_while_it_is_held(ctx: Context) -> Result<(), Failure> {
    let group = ctx.namespace("growing")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let first = a.slots(&group).acquire(1, &terms(&ctx)).await?;
    let waiting = {
        let (b, group, terms) = (b.clone(), group.clone(), terms(&ctx).wait_forever());
        tokio::spawn(async move { b.slots(&group).acquire(1, &terms).await })
    };
    ctx.pass(Duration::from_millis(300)).await;
    ensure!(!waiting.is_finished(), "a second of one");
    a.slots(&group).resize(2).await?;
    let second = soon("the new slot", waiting).await???;
    ensure_eq!(a.slots(&group).count().await?, Some(2));
    ensure!(first.index() != second.index(), "two have slot {}", first.index());
    ensure_in_time!(first.is_valid() && second.is_valid(), "both hold");
    first.into_lease().release().await?;
    Ok(second.into_lease().release().await?)
}

async fn a_group_shrinks_without_evicting(ctx: Context) -> Result<(), Failure> {
    let group = ctx.namespace("shrinking")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(a.slots(&group).acquire(3, &terms(&ctx)).await?);
    }
    b.slots(&group).resize(1).await?;
    ctx.pass(ctx.life()).await;
    ensure_in_time!(held.iter().all(|slot| slot.is_valid()), "somebody was evicted");
    // The lowest goes first, so that what remains lies above the new count.
    held.sort_by_key(SlotLease::index);
    for slot in held {
        refused(b.slots(&group).acquire(3, &terms(&ctx)).await, slot.is_valid())?;
        slot.into_lease().release().await?;
    }
    let next = b.slots(&group).acquire(3, &Terms::new().ttl(ctx.life())).await?;
    ensure_eq!(next.index(), 0, "the one slot that is left");
    refused(a.slots(&group).acquire(3, &terms(&ctx)).await, next.is_valid())?;
    Ok(next.into_lease().release().await?)
}

/// Waits for a slot, and returns once it is in line.
async fn queue(
    coordinator: &Coordinator,
    group: &Namespace,
    count: u32,
    terms: Terms,
) -> Result<JoinHandle<tenure::Result<SlotLease>>, Failure> {
    let slots = coordinator.slots(group);
    let waiting = tokio::spawn({
        let slots = slots.clone();
        async move { slots.acquire(count, &terms.wait_forever()).await }
    });
    soon("the waiter", async {
        while slots.waiters().await.is_ok_and(|waiters| waiters.is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?;
    Ok(waiting)
}

async fn a_shrunk_group_is_not_refilled_by_a_hand_over(ctx: Context) -> Result<(), Failure> {
    let group = ctx.namespace("refilled")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let long = terms(&ctx).ttl(ctx.ttl_of(Duration::from_secs(120)));
    let first = a.slots(&group).acquire(2, &long).await?;
    let second = a.slots(&group).acquire(2, &long).await?;
    b.slots(&group).resize(1).await?;
    let waiting = queue(&b, &group, 2, long).await?;
    let (index, refused) = (first.index(), first.into_lease().hand_over("b").await);
    let Err((first, Error::Invalid { reason, .. })) = refused else {
        return Err(Failure::new(format!("slot {index}: {refused:?}")));
    };
    ensure!(reason.contains("which has 1"), "the reason is not told: {reason}");
    let asked = a.slots(&group).ask_to_hand_over(index, None, None, PATIENCE).await;
    ensure!(matches!(asked, Err(Error::Invalid { .. })), "{asked:?}");
    first.release().await?;
    // With one held of one, it may change hands.
    second.into_lease().hand_over("b").await.map_err(|(_, error)| error)?;
    let handed = soon("the successor", waiting).await???;
    ensure_eq!(b.list_holders(&group).await?.len(), 1, "holders");
    Ok(handed.into_lease().release().await?)
}

async fn a_slot_is_handed_over(ctx: Context) -> Result<(), Failure> {
    let group = ctx.namespace("passing")?;
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let slot = a.slots(&group).acquire(1, &terms(&ctx)).await?;
    let waiting = queue(&b, &group, 1, terms(&ctx)).await?;
    let (token, index) = (slot.token(), slot.index());
    slot.into_lease().hand_over("b").await.map_err(|(_, error)| error)?;
    let handed = soon("the successor", waiting).await???;
    ensure_eq!(handed.index(), index);
    ensure!(handed.token() > token, "{} after {token}", handed.token());
    Ok(handed.into_lease().release().await?)
}
