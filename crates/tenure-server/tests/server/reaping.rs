//! Reaping over the wire: what leases leave behind that end without a release.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::clock::SystemClock;
use tenure::store::Store;
use tenure::store::faulty::{Fault, FaultPlan, Faulty, Operation};
use tenure::store::memory::MemoryStore;
use tenure_proto::v1;
use tenure_proto::v1::leases_client::LeasesClient;
use tenure_server::ServerLimits;
use tonic::{Code, Status};

use crate::auth::rig::{Rig, token, until};
use crate::serving::{Leases, Serving, acquire, end_of, eventually, on_each, release, terms, told};

/// Terms of somebody who will not be there to release it.
fn brief(owner: &str) -> v1::Terms {
    v1::Terms { ttl_ms: 1_000, reapable: true, ..terms(owner) }
}

/// A commit that leaves a trace each time it applies.
fn trace(id: &str) -> v1::CommitRequest {
    let key = Some(v1::Key { kind: "trace".into(), id: id.into() });
    // Another payload each time, so that no two of them are the same.
    let payload = tenure::random::nonce(&tenure::random::SystemRandom).to_string().into();
    let put = v1::Put { key, payload, ..v1::Put::default() };
    let write = v1::Write { write: Some(v1::write::Write::Put(put)) };
    v1::CommitRequest { writes: vec![write], ..v1::CommitRequest::default() }
}

async fn orphans(leases: &Leases, namespace: &str) -> Result<Vec<v1::Orphan>, Status> {
    let request = v1::ListOrphansRequest { namespace: namespace.into(), children: true };
    Ok(leases.clone().list_orphans(request).await?.into_inner().orphans)
}

fn reap_of(left: &v1::Orphan) -> v1::ReapRequest {
    let (scope, nonce, revision) = (left.scope.clone(), left.nonce.clone(), left.revision);
    v1::ReapRequest { scope, nonce, revision, commit: Some(trace(&left.scope)) }
}

async fn reap(leases: &Leases, left: &v1::Orphan) -> Result<bool, Status> {
    Ok(leases.clone().reap(reap_of(left)).await?.into_inner().reaped)
}

/// Resolves when so many are left.
async fn left(leases: &Leases, namespace: &str, count: usize) -> Result<Vec<v1::Orphan>> {
    let look = || async { Ok(orphans(leases, namespace).await?.len() == count) };
    eventually(&format!("{count} are left of {namespace}"), look).await?;
    Ok(orphans(leases, namespace).await?)
}

/// How often a trace was left.
async fn traces(server: &Serving, id: &str) -> Result<u64> {
    let key = Some(v1::Key { kind: "trace".into(), id: id.into() });
    let got = server.store().await?.get(v1::GetRequest { key }).await?.into_inner();
    Ok(got.object.map_or(0, |object| object.version))
}

#[tokio::test]
async fn two_who_reap_at_once_reap_each_once_and_leave_alone_what_lives() -> Result<()> {
    on_each(|store| async move {
        let (a, b) = (Serving::start(&store).await?, Serving::start(&store).await?);
        let (here, there) = (a.leases().await?, b.leases().await?);
        let metadata = [("host".to_owned(), "h7".to_owned())].into();
        let lives = v1::Terms { reapable: true, metadata, ..terms("l#1") };
        acquire(&here, "jobs.eu/lives", lives).await?;
        let released = v1::Terms { reapable: true, ..terms("r#1") };
        release(&here, &acquire(&here, "jobs.eu/released", released).await?).await?;
        for n in 0..8 {
            acquire(&here, &format!("jobs.eu/{n}"), brief("w#1")).await?;
        }
        let all = left(&here, "jobs", 8).await?;
        let first = all.first().context("one")?;
        ensure!(first.scope == "jobs.eu/0" && first.holder == "w#1", "{first:?}");
        ensure!(first.token > 0 && first.acquired_at_ms > 0, "{first:?}");
        let reaper = |leases: Leases, all: Vec<v1::Orphan>| {
            tokio::spawn(async move {
                let mut reaped = 0;
                for left in &all {
                    reaped += usize::from(reap(&leases, left).await?);
                }
                Ok::<_, Status>(reaped)
            })
        };
        let (one, other) = (reaper(here.clone(), all.clone()), reaper(there, all));
        let (one, other) = (end_of(one).await??, end_of(other).await??);
        ensure!(one + other == 8, "{one} and {other}");
        for n in 0..8 {
            ensure!(traces(&a, &format!("jobs.eu/{n}")).await? == 1, "{n}");
        }
        ensure!(orphans(&here, "jobs").await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_lives_is_held_and_what_does_not_fit_changes_nothing() -> Result<()> {
    on_each(|store| async move {
        let server = Serving::start(&store).await?;
        let leases = server.leases().await?;
        let reapable = v1::Terms { reapable: true, ..terms("a#1") };
        let grant = acquire(&leases, "jobs/lives", reapable).await?;
        // Its orphan was written in the commit that acquired it.
        let own = v1::Orphan {
            scope: grant.scope.clone(),
            nonce: grant.nonce.clone(),
            revision: grant.revision,
            ..v1::Orphan::default()
        };
        let error = told(reap(&leases, &own).await, Code::FailedPrecondition, "held")?;
        ensure!(error.holder.as_deref() == Some("a#1"), "{error:?}");
        acquire(&leases, "jobs/gone", brief("b#1")).await?;
        let gone = left(&leases, "jobs", 1).await?.remove(0);
        let another = v1::Orphan { revision: gone.revision + 1, ..gone.clone() };
        told(reap(&leases, &another).await, Code::Aborted, "conflict")?;
        let mut request = reap_of(&gone);
        let key = Some(v1::Key { kind: "trace".into(), id: "no such".into() });
        let expect = Some(v1::Expect { what: Some(v1::expect::What::Exists(true)) });
        let check = v1::Check { key, expect };
        request.commit.get_or_insert_default().checks.push(check);
        told(leases.clone().reap(request).await, Code::NotFound, "not_found")?;
        ensure!(traces(&server, "jobs/gone").await? == 0);
        ensure!(reap(&leases, &gone).await? && !reap(&leases, &gone).await?);
        ensure!(traces(&server, "jobs/gone").await? == 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn whoever_hears_no_answer_asks_again_and_it_happens_once() -> Result<()> {
    let (plan, memory) = (FaultPlan::scripted(), MemoryStore::new().into_store());
    let faulty = Faulty::new(Arc::clone(memory.backend()), plan.clone(), SystemClock::shared());
    let (store, limits) = (Store::new(faulty), ServerLimits::default());
    let server = Serving::start_with(&store, limits, Duration::from_secs(1)).await?;
    let leases = server.leases().await?;
    for (lost, done) in [(Fault::LostReply, true), (Fault::LostRequest, false)] {
        acquire(&leases, "jobs/a", brief("w#1")).await?;
        let gone = left(&leases, "jobs", 1).await?.remove(0);
        let before = traces(&server, "jobs/a").await?;
        plan.next(Operation::Commit, lost);
        told(reap(&leases, &gone).await, Code::Unknown, "unknown")?;
        ensure!(reap(&leases, &gone).await? != done, "{lost:?}");
        ensure!(traces(&server, "jobs/a").await? == before + 1, "{lost:?}");
    }
    Ok(())
}

#[tokio::test]
async fn whoever_may_hold_may_reap_and_write_what_it_may_write() {
    let (holder, first) = token("reap-holder", &["leases:hold:jobs.*", "objects:write:trace/*"]);
    let (reader, second) = token("reap-reader", &["leases:read:jobs.*", "objects:write:trace/*"]);
    let (poor, third) = token("reap-poor", &["leases:hold:jobs.*"]);
    let rig = Rig::start(Some(&format!("{first}{second}{third}")), |_, _| {}).await;
    let client = rig.client(Some(&holder)).await;
    let mut leases = LeasesClient::new(client.channel.clone());
    let asks = v1::AcquireRequest { scope: "jobs.eu/a".into(), terms: Some(brief("w#1")) };
    leases.acquire(client.with(asks)).await.unwrap();
    let list =
        |namespace: &str| v1::ListOrphansRequest { namespace: namespace.into(), children: true };
    let left = || async {
        let request = client.as_with(&reader).with(list("jobs"));
        leases.clone().list_orphans(request).await.unwrap().into_inner().orphans
    };
    until("it is left", || async { !left().await.is_empty() }).await;
    let gone = left().await.remove(0);
    for elsewhere in ["", "other"] {
        let told = leases.list_orphans(client.with(list(elsewhere))).await.unwrap_err();
        assert_eq!(told.code(), Code::PermissionDenied, "{elsewhere}");
    }
    for other in [reader, poor] {
        let told = leases.reap(client.as_with(&other).with(reap_of(&gone))).await.unwrap_err();
        assert_eq!(told.code(), Code::PermissionDenied);
    }
    assert!(leases.reap(client.with(reap_of(&gone))).await.unwrap().into_inner().reaped);
}
