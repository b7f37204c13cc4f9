//! Leases over gRPC.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure_proto::v1;
use tenure_server::ServerLimits;
use tonic::Code;

use crate::serving::{
    Serving, acquire, asking, end_of, eventually, holder, in_line, next, on_each, release, show,
    terms, told, waiting,
};

const SCOPE: &str = "billing.nightly/close";

#[tokio::test]
async fn one_holds_and_others_are_told_who() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let leases = server.leases().await?;
        let first = acquire(&leases, SCOPE, terms("a#1")).await?;
        ensure!(first.scope == SCOPE && first.owner == "a#1" && first.queue == SCOPE, "{first:?}");
        let refused = acquire(&leases, SCOPE, terms("b#1")).await;
        let error = told(refused, Code::FailedPrecondition, "held")?;
        ensure!(error.holder.as_deref() == Some("a#1") && error.token == first.token, "{error:?}");
        ensure!(error.scope == SCOPE && error.message.contains("a#1"), "{error:?}");
        ensure!((1..=10_000).contains(&error.expires_in_ms), "{error:?}");
        // The same owner gets what it has; another start of the same name is somebody else.
        let again = acquire(&leases, SCOPE, terms("a#1")).await?;
        ensure!((again.token, &again.nonce) == (first.token, &first.nonce), "{again:?}");
        told(acquire(&leases, SCOPE, terms("a#2")).await, Code::FailedPrecondition, "held")?;
        release(&leases, &first).await?;
        let next = acquire(&leases, SCOPE, terms("b#1")).await?;
        ensure!(next.token > first.token);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_release_wakes_whoever_waits_and_a_second_one_is_told_that_it_is_lost() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let (here, there) = (a.leases().await?, b.leases().await?);
        let first = acquire(&here, SCOPE, terms("a#1")).await?;
        let waiter = asking(&there, SCOPE, waiting("b#1"));
        in_line(&here, SCOPE, 1).await?;
        release(&here, &first).await?;
        let second = end_of(waiter).await??;
        ensure!(second.token > first.token && second.owner == "b#1");
        let error = told(release(&there, &first).await, Code::FailedPrecondition, "lost")?;
        ensure!(error.token == first.token && error.current_token == Some(second.token));
        release(&there, &second).await?;
        let error = told(release(&here, &second).await, Code::FailedPrecondition, "lost")?;
        ensure!(error.current_token.is_none(), "{error:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn many_are_renewed_at_once_and_each_answer_stands_alone() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let mut leases = server.leases().await?;
        let mut grants = Vec::new();
        for n in 0..40 {
            grants.push(acquire(&leases, &format!("shop/{n}"), terms("a#1")).await?);
        }
        release(&leases, &grants[7]).await?;
        // One whose revision is out of date, and some that make no sense at all.
        grants[9].revision = 1;
        grants.push(v1::LeaseGrant { scope: "not a scope".into(), ..grants[0].clone() });
        grants.push(v1::LeaseGrant { owner: String::new(), ..grants[0].clone() });
        let request = v1::RenewRequest { grants: grants.clone() };
        let renewed = leases.renew(request).await?.into_inner().renewed;
        ensure!(renewed.len() == grants.len());
        for (at, renewed) in renewed.into_iter().enumerate() {
            match (at, renewed.outcome.context("an outcome")?) {
                (7, v1::renewed::Outcome::Error(error)) => {
                    ensure!(error.code == "lost" && error.token == grants[7].token, "{error:?}");
                }
                (40 | 41, v1::renewed::Outcome::Error(error)) => {
                    ensure!(error.code == "invalid", "{error:?}");
                }
                (_, v1::renewed::Outcome::Renewal(renewal)) => {
                    ensure!(renewal.ttl_ms >= 10_000 && renewal.remaining_ms > 0, "{renewal:?}");
                }
                (at, other) => anyhow::bail!("{at}: {other:?}"),
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_lease_is_handed_over_to_a_waiter_by_name() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let mut leases = server.leases().await?;
        let grant = acquire(&leases, SCOPE, terms("a#1")).await?;
        let hand_over =
            |to: &str| v1::HandOverRequest { grant: Some(grant.clone()), successor: to.to_owned() };
        let nobody = leases.hand_over(hand_over("c")).await;
        let error = told(nobody, Code::InvalidArgument, "invalid")?;
        ensure!(error.message.contains('c'), "{error:?}");
        let first = asking(&leases, SCOPE, waiting("b#1"));
        in_line(&leases, SCOPE, 1).await?;
        let second = asking(&leases, SCOPE, waiting("c#1"));
        in_line(&leases, SCOPE, 2).await?;
        leases.hand_over(hand_over("c")).await?;
        let passed_on = end_of(second).await??;
        ensure!(passed_on.owner == "c#1" && passed_on.token > grant.token);
        let late = leases.hand_over(hand_over("b")).await;
        told(late, Code::FailedPrecondition, "lost")?;
        release(&leases, &passed_on).await?;
        ensure!(end_of(first).await??.owner == "b#1");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_holder_proclaims_and_whoever_is_revoked_is_told() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let mut leases = server.leases().await?;
        let grant = acquire(&leases, SCOPE, terms("a#1")).await?;
        let metadata = HashMap::from([("address".to_owned(), "10.0.0.1:80".to_owned())]);
        let proclaim = v1::ProclaimRequest {
            grant: Some(grant.clone()),
            metadata: metadata.into_iter().collect(),
        };
        let renewal = leases.proclaim(proclaim.clone()).await?.into_inner().renewal;
        ensure!(renewal.context("a renewal")?.remaining_ms > 0);
        let lease = show(&leases, SCOPE).await?.holder.context("a holder")?;
        ensure!(lease.metadata["address"] == "10.0.0.1:80" && lease.token == grant.token);
        ensure!(lease.expires_in_ms.is_some() && lease.acquired_at_ms > 0, "{lease:?}");
        let revoke = |reason: &str| v1::RevokeRequest {
            scope: SCOPE.into(),
            reason: reason.into(),
            expect_token: None,
        };
        ensure!(leases.revoke(revoke("the disk is full")).await?.into_inner().revoked);
        ensure!(!leases.revoke(revoke("")).await?.into_inner().revoked, "nothing was left");
        let renew = v1::RenewRequest { grants: vec![grant.clone()] };
        let renewed = leases.renew(renew).await?.into_inner().renewed;
        let Some(Some(v1::renewed::Outcome::Error(error))) = renewed.first().map(|r| &r.outcome)
        else {
            anyhow::bail!("still renewed: {renewed:?}");
        };
        ensure!(error.code == "lost", "{error:?}");
        told(leases.proclaim(proclaim).await, Code::FailedPrecondition, "lost")?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn whoever_waits_is_shown_in_order_and_whoever_gives_up_leaves_no_trace() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let leases = server.leases().await?;
        let grant = acquire(&leases, SCOPE, terms("a#1")).await?;
        let given_up = asking(&leases, SCOPE, waiting("b#1"));
        in_line(&leases, SCOPE, 1).await?;
        let waiter = asking(&leases, SCOPE, waiting("c#1"));
        in_line(&leases, SCOPE, 2).await?;
        let shown = show(&leases, SCOPE).await?;
        let line: Vec<_> = shown.waiters.iter().map(|w| &*w.owner).collect();
        ensure!(line == ["b#1", "c#1"], "{line:?}");
        ensure!(shown.waiters[0].place < shown.waiters[1].place);
        ensure!(shown.waiters.iter().all(|waiter| waiter.since_ms > 0));
        given_up.abort();
        in_line(&leases, SCOPE, 1).await?;
        release(&leases, &grant).await?;
        ensure!(end_of(waiter).await??.owner == "c#1");
        in_line(&leases, SCOPE, 0).await
    })
    .await
}

#[tokio::test]
async fn a_wait_ends_when_it_was_to_end_and_no_wait_is_for_ever() -> Result<()> {
    let limits = ServerLimits { wait_max: Duration::from_millis(300), ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let leases = server.leases().await?;
    acquire(&leases, SCOPE, terms("a#1")).await?;
    let short = v1::Terms { wait_ms: 50, ..terms("b#1") };
    let for_ever = v1::Terms { wait_forever: true, ..terms("b#2") };
    for terms in [short, waiting("b#3"), for_ever] {
        let waited = end_of(asking(&leases, SCOPE, terms)).await?;
        let error = told(waited, Code::FailedPrecondition, "held")?;
        ensure!(error.holder.as_deref() == Some("a#1"), "{error:?}");
    }
    in_line(&leases, SCOPE, 0).await
}

#[tokio::test]
async fn whoever_gives_no_start_gets_one_and_leaves_nothing_behind() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let leases = server.leases().await?;
        let grant = acquire(&leases, SCOPE, terms("a")).await?;
        ensure!(grant.owner.starts_with("a#") && grant.owner.len() > 4, "{grant:?}");
        told(acquire(&leases, SCOPE, terms("a")).await, Code::FailedPrecondition, "held")?;
        release(&leases, &grant).await?;
        ensure!(holder(&leases, SCOPE).await?.is_none());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn leases_are_listed_by_namespace_with_or_without_those_below() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let mut leases = server.leases().await?;
        for scope in ["shop/a", "shop.eu/b", "shopping/c"] {
            acquire(&leases, scope, terms("a#1")).await?;
        }
        for (namespace, children, expected) in [
            ("shop", false, vec!["shop/a"]),
            ("shop", true, vec!["shop.eu/b", "shop/a"]),
            ("", false, vec!["shop.eu/b", "shop/a", "shopping/c"]),
        ] {
            let request = v1::ListLeasesRequest { namespace: namespace.into(), children };
            let listed = leases.list(request).await?.into_inner().leases;
            let mut scopes: Vec<_> = listed.iter().map(|lease| &*lease.scope).collect();
            scopes.sort_unstable();
            ensure!(scopes == expected, "{namespace} {children}: {scopes:?}");
        }
        let request = v1::ListLeasesRequest { namespace: "a/b".into(), children: false };
        let error = told(leases.list(request).await, Code::InvalidArgument, "invalid")?;
        ensure!(error.message.contains("a/b"), "{error:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_watch_tells_who_holds_and_what_ended() -> Result<()> {
    on_each(|store| async move {
        use v1::lease_event::Event;
        let server = Serving::start(&store).await?;
        let mut leases = server.leases().await?;
        let request = v1::WatchLeasesRequest { prefix: "shop/".into(), after: None };
        let mut events = leases.watch(request).await?.into_inner();
        let first = next(&mut events).await?.context("a first message")?;
        ensure!(first.event.is_none(), "it watches from now on: {first:?}");
        acquire(&leases, "other/a", terms("a#1")).await?;
        let grant = acquire(&leases, "shop/a", terms("a#1")).await?;
        release(&leases, &grant).await?;
        let Some(Event::Held(lease)) = next(&mut events).await?.and_then(|e| e.event) else {
            anyhow::bail!("it is held");
        };
        ensure!((&*lease.scope, lease.token) == ("shop/a", grant.token), "{lease:?}");
        let Some(Event::Ended(ended)) = next(&mut events).await?.and_then(|e| e.event) else {
            anyhow::bail!("it ended");
        };
        ensure!(ended.scope == "shop/a" && ended.cause() == v1::Cause::Deleted, "{ended:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_makes_no_sense_is_named() -> Result<()> {
    let server = Serving::limited(ServerLimits::default()).await?;
    let mut leases = server.leases().await?;
    for (scope, terms, named) in [
        ("no slash", Some(terms("a#1")), "no slash"),
        ("shop/a", Some(terms("")), "owner"),
        ("shop/a", Some(terms("a#")), "owner"),
        ("shop/a", None, "terms"),
        ("shop/a", Some(v1::Terms { ttl_ms: 1, ..terms("a#1") }), "life"),
    ] {
        let request = v1::AcquireRequest { scope: scope.into(), terms };
        let error = told(leases.acquire(request).await, Code::InvalidArgument, "invalid")?;
        ensure!(error.message.contains(named), "{named}: {error:?}");
    }
    let good = acquire(&leases, "shop/a", terms("a#1")).await?;
    for (grant, named) in [
        (None, "grant"),
        (Some(v1::LeaseGrant { owner: "x".into(), ..good.clone() }), "x"),
        (Some(v1::LeaseGrant { scope: "?".into(), ..good.clone() }), "?"),
    ] {
        let request = v1::ReleaseRequest { grant, outcome: None };
        let error = told(leases.release(request).await, Code::InvalidArgument, "invalid")?;
        ensure!(error.message.contains(named), "{named}: {error:?}");
    }
    // A grant with somebody else's token does nothing to the lease.
    let wrong = v1::LeaseGrant { token: good.token + 1, ..good.clone() };
    told(release(&leases, &wrong).await, Code::FailedPrecondition, "lost")?;
    ensure!(holder(&leases, "shop/a").await?.as_deref() == Some("a#1"));
    Ok(())
}

#[tokio::test]
async fn an_abandoned_acquisition_is_resumed_by_its_owner_at_another_replica() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let there = b.leases().await?;
        let first = acquire(&a.leases().await?, SCOPE, terms("a#1")).await?;
        drop(a);
        let again = acquire(&there, SCOPE, waiting("a#1")).await?;
        ensure!((again.token, &again.nonce) == (first.token, &first.nonce));
        release(&there, &again).await?;
        eventually("it is free", || async { Ok(holder(&there, SCOPE).await?.is_none()) }).await
    })
    .await
}

#[tokio::test]
async fn whoever_came_after_the_one_that_was_to_be_revoked_is_left_alone() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let mut leases = server.leases().await?;
        let seen = acquire(&leases, SCOPE, terms("a#1")).await?;
        release(&leases, &seen).await?;
        let revoke = |token| v1::RevokeRequest {
            scope: SCOPE.into(),
            expect_token: Some(token),
            ..v1::RevokeRequest::default()
        };
        ensure!(!leases.revoke(revoke(seen.token)).await?.into_inner().revoked, "nobody holds it");
        let next = acquire(&leases, SCOPE, terms("b#1")).await?;
        let error =
            told(leases.revoke(revoke(seen.token)).await, Code::FailedPrecondition, "lost")?;
        ensure!(error.current_token == Some(next.token), "{error:?}");
        ensure!(holder(&leases, SCOPE).await?.as_deref() == Some("b#1"));
        ensure!(leases.revoke(revoke(next.token)).await?.into_inner().revoked);
        ensure!(holder(&leases, SCOPE).await?.is_none());
        Ok(())
    })
    .await
}
