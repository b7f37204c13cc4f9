//! What `kubectl` shows of our leases, and how they get there.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::Key;
use tenure::clock::ManualClock;
use tenure::lease::LEASE;
use tenure::store::{Expect, Put, Query, Touch};
use tenure_conformance::harness::Trials;

use crate::cluster::{Cluster, everywhere};
use crate::common::{
    OrFail, Outcome, coordinator, ensure, ensure_eq, open, open_with, scope, soon, spec, standin,
    terms,
};

pub(crate) fn add(trials: &mut Trials) {
    everywhere(trials, "people_see_holder_times_transitions_and_labels", fields);
    everywhere(trials, "slots_carry_their_group", slots);
    everywhere(trials, "a_release_empties_the_holder_and_keeps_the_lease", release);
    everywhere(trials, "idle_leases_are_deleted_where_that_is_wanted", idle);
    everywhere(trials, "what_others_wrote_into_a_lease_stays", others);
    trials.test("kubernetes::every_change_is_a_put_with_resource_version_and_uid", puts);
    everywhere(trials, "a_prefix_and_a_long_scope_name_their_leases", names);
    everywhere(trials, "renewals_differ_by_a_whole_second", seconds);
}

async fn fields(server: Cluster) -> Outcome {
    let store = server.store().await?;
    let coordinator = coordinator(&store, "worker-2")?;
    let held = coordinator.acquire(&scope("billing.nightly/close")?, &terms(30)).await?;
    let seen = server.lease("billing.nightly.close").await?;
    let holder = coordinator.owner().to_string();
    ensure!(holder.starts_with("worker-2#"), "{holder}");
    ensure_eq!(seen["apiVersion"], "coordination.k8s.io/v1");
    ensure_eq!(*spec(&seen, "holderIdentity"), holder.as_str());
    ensure_eq!(*spec(&seen, "leaseDurationSeconds"), 30);
    ensure_eq!(*spec(&seen, "leaseTransitions"), 0);
    for time in ["acquireTime", "renewTime"] {
        let text = spec(&seen, time).as_str().unwrap_or_default();
        // MicroTime: RFC 3339 with exactly six digits.
        ensure!(text.len() == "2026-01-01T00:00:00.000000Z".len() && text.ends_with('Z'), "{text}");
    }
    let labels = &seen["metadata"]["labels"];
    ensure_eq!(labels["app.kubernetes.io/managed-by"], "tenure");
    ensure_eq!(labels["tenure.dev/namespace"], "billing.nightly");
    ensure_eq!(labels["tenure.dev/key"], "close");
    ensure_eq!(seen["metadata"]["annotations"]["tenure.dev/id"], "billing.nightly/close");
    ensure_eq!(seen["metadata"]["managedFields"][0]["manager"], "tenure");
    ensure_eq!(seen["metadata"]["resourceVersion"], held.token().to_string());
    held.renew().await?;
    let renewed = server.lease("billing.nightly.close").await?;
    ensure!(spec(&renewed, "renewTime").as_str() > spec(&seen, "renewTime").as_str(), "{renewed}");
    ensure_eq!(*spec(&renewed, "acquireTime"), *spec(&seen, "acquireTime"));
    ensure_eq!(*spec(&renewed, "leaseTransitions"), 0);
    let status = coordinator.status(&scope("billing.nightly/close")?).await?;
    ensure_eq!(status.holder.map(|info| info.token), Some(held.token()));
    Ok(held.release().await?)
}

async fn slots(server: Cluster) -> Outcome {
    let store = server.store().await?;
    let coordinator = coordinator(&store, "w")?;
    let group = "gpu.pool".parse()?;
    let slot = coordinator.acquire_slot(&group, 1, &terms(30)).await?.ok_or("no slot")?;
    ensure_eq!(slot.index(), 0);
    let seen = server.lease("gpu.pool.slot-0").await?;
    ensure_eq!(seen["metadata"]["labels"]["tenure.dev/group"], "gpu.pool");
    ensure_eq!(coordinator.list_holders(&group).await?.len(), 1);
    let refused = coordinator.slots(&group).resize(2).await.err().ok_or("resized")?;
    ensure!(refused.to_string().contains("kubernetes does not support multi-object"), "{refused}");
    Ok(slot.into_lease().release().await?)
}

async fn release(server: Cluster) -> Outcome {
    let store = server.store().await?;
    let (a, b) = (coordinator(&store, "a")?, coordinator(&store, "b")?);
    let scope = scope("jobs/x")?;
    let mut tokens = Vec::new();
    let mut uid = Value::Null;
    for n in 0..4 {
        let held = [&a, &b][n % 2].acquire(&scope, &terms(30)).await?;
        let seen = server.lease("jobs.x").await?;
        ensure_eq!(*spec(&seen, "leaseTransitions"), json!(n));
        if n > 0 {
            ensure_eq!(seen["metadata"]["uid"], uid);
        }
        uid = seen["metadata"]["uid"].clone();
        tokens.push(held.token());
        held.release().await?;
        let idle = server.lease("jobs.x").await?;
        ensure_eq!(*spec(&idle, "holderIdentity"), "");
        ensure_eq!(*spec(&idle, "leaseTransitions"), json!(n));
        ensure_eq!(idle["metadata"]["annotations"]["tenure.dev/ended"], "released");
        ensure_eq!(a.holder(&scope).await?, None);
    }
    ensure!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    Ok(())
}

async fn idle(server: Cluster) -> Outcome {
    let clock = ManualClock::new();
    let at_once = server.options().delete_idle_after(Duration::ZERO);
    let later = server.options().delete_idle_after(Duration::from_secs(60));
    let (at_once, later) =
        (open_with(at_once).await?, open_with(later.clock(Arc::new(clock.clone()))).await?);
    let scope = scope("jobs/once")?;
    let gone = || async {
        while !server.lease("jobs.once").await?.is_null() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Outcome::Ok(())
    };
    let mut last = 0;
    for _ in 0..3 {
        let held = coordinator(&at_once, "w")?.acquire(&scope, &terms(30)).await?;
        ensure!(held.token() > last, "token {} after {last}", held.token());
        last = held.token();
        held.release().await?;
        soon("the deletion", gone()).await??;
    }
    // The other one deletes what it has seen idle for a while, and nothing that is held.
    let plain = coordinator(&server.store().await?, "plain")?;
    let kept = plain.acquire(&"jobs/kept".parse()?, &terms(3000)).await?;
    plain.acquire(&scope, &terms(30)).await?.release().await?;
    for _ in 0..2 {
        later.list(&Query::new(LEASE)).await?;
        ensure!(!server.lease("jobs.once").await?.is_null(), "deleted too early");
        clock.advance(Duration::from_secs(35));
    }
    later.list(&Query::new(LEASE)).await?;
    soon("the deletion", gone()).await??;
    ensure!(!server.lease("jobs.kept").await?.is_null(), "a held lease was deleted");
    Ok(kept.release().await?)
}

async fn others(server: Cluster) -> Outcome {
    let made = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "jobs.x", "labels": {"team": "red"}, "annotations": {"note": "mine"},
            "ownerReferences": [{"kind": "Deployment", "name": "d", "uid": "u", "apiVersion": "v1"}]},
        "spec": {"strategy": "OldestEmulationVersion"},
    });
    ensure_eq!(server.create(made.clone()).await?, 201);
    // A server on which coordinated election is off drops the strategy by itself.
    let before = server.lease("jobs.x").await?;
    let store = server.store().await?;
    let coordinator = coordinator(&store, "w")?;
    let held = coordinator.acquire(&scope("jobs/x")?, &terms(30)).await?;
    held.renew().await?;
    held.release().await?;
    let seen = server.lease("jobs.x").await?;
    ensure_eq!(seen["metadata"]["labels"]["team"], "red");
    ensure_eq!(seen["metadata"]["annotations"]["note"], "mine");
    ensure_eq!(seen["metadata"]["ownerReferences"], made["metadata"]["ownerReferences"]);
    ensure_eq!(*spec(&seen, "strategy"), *spec(&before, "strategy"));
    Ok(())
}

async fn puts() -> Outcome {
    let server = standin();
    let store = open(&server).await?;
    let (a, b) = (coordinator(&store, "a")?, coordinator(&store, "b")?);
    for n in 0..3 {
        let scope = scope(&format!("jobs/{n}"))?;
        let held = a.acquire(&scope, &terms(30)).await?;
        held.renew().await?;
        ensure!(b.acquire(&scope, &terms(30)).await.is_err(), "two holders");
        held.release().await?;
        b.acquire(&scope, &terms(30)).await?.release().await?;
    }
    let (mut puts, mut posts) = (0, 0);
    for request in server.take_seen() {
        match request.method.as_str() {
            "GET" => {}
            "POST" => posts += 1,
            "PUT" => {
                let metadata = &request.body["metadata"];
                ensure!(metadata["resourceVersion"].is_string(), "{request:?}");
                ensure!(metadata["uid"].is_string(), "{request:?}");
                puts += 1;
            }
            // PATCH and DELETE among them.
            other => ensure!(false, "{other}: {request:?}"),
        }
    }
    // Created once; renewed, released, taken and released again by PUT, without a read in between.
    ensure_eq!((posts, puts), (3, 12));
    Ok(())
}

async fn names(server: Cluster) -> Outcome {
    let store = open_with(server.options_with_prefix("app-")).await?;
    let outside = coordinator(&server.store().await?, "other")?;
    let inside = coordinator(&store, "w")?;
    let _theirs = outside.acquire(&scope("lease/x")?, &terms(30)).await?;
    // Two stores in one namespace that do not see each other.
    let held = inside.acquire(&scope("lease/x")?, &terms(30)).await?;
    ensure_eq!(server.lease("app-x").await?["spec"]["leaseTransitions"], 0);
    let long = scope(&format!("jobs/{}", "Ü".repeat(150)))?;
    let other = inside.acquire(&long, &terms(30)).await?;
    let all: Vec<_> = store.list_all(&Query::new(LEASE)).await?;
    let ids: Vec<_> = all.iter().map(|object| object.key.id.as_str()).collect();
    ensure_eq!(ids, [long.as_str(), "lease/x"].to_vec());
    held.release().await?;
    other.release().await?;
    ensure!(open_with(server.options_with_prefix("App")).await.is_err(), "a prefix in capitals");
    Ok(())
}

/// client-go reads times in whole seconds, and takes a record that it reads alike for unchanged.
async fn seconds(server: Cluster) -> Outcome {
    let store = server.store().await?;
    let key = Key::new(LEASE, "jobs/quick");
    let life = Duration::from_secs(5);
    let put = Put::new(key.clone(), "{}").ttl(life).expect(Expect::Absent);
    let mut revision = store.commit(put).await?.revision.ok_or("no revision")?;
    let mut times = Vec::new();
    for _ in 0..5 {
        let touch = Touch { key: key.clone(), revision, ttl: life };
        revision = store.touch(vec![touch]).await?.remove(0).or_fail()?.revision;
        let seen = server.lease("jobs.quick").await?;
        times.push(spec(&seen, "renewTime").as_str().unwrap_or_default()[..19].to_owned());
    }
    ensure!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    Ok(())
}
