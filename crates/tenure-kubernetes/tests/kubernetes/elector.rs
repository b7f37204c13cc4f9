//! Electors built on client-go, by its rules, beside our holders: each respects the other's lease, and
//! no wall clock decides anything.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::clock::{Clock, ManualClock};
use tenure::lease::{LEASE, LeaseInfo};
use tenure::store::{Expect, Put, Touch};
use tenure::{Error, Key};
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;

use crate::cluster::{Cluster, everywhere};
use crate::common::{
    OrFail, Outcome, coordinator, ensure, ensure_eq, open_with, scope, soon, spec, terms,
};

pub(crate) fn add(trials: &mut Trials) {
    everywhere(trials, "an_electors_lease_is_respected_until_it_expires", theirs);
    everywhere(trials, "an_elector_respects_our_holder", ours);
    everywhere(trials, "a_lease_without_a_duration_is_held_until_it_is_emptied", endless);
    everywhere(trials, "a_waiter_is_woken_by_an_electors_expiry_and_release", waiter);
    everywhere(trials, "a_lease_that_is_being_deleted_is_not_taken", going);
    everywhere(trials, "a_holder_that_somebody_replaced_by_hand_has_lost", replaced);
    everywhere(trials, "old_annotations_say_nothing_about_a_new_holder", annotations);
}

/// An elector as client-go has it: what it last saw of the record, and when on its own steady clock.
/// It reads times in whole seconds.
struct Elector<'a> {
    server: &'a Cluster,
    name: &'static str,
    identity: &'static str,
    duration: i64,
    /// Its wall clock: whatever somebody set it to.
    wall: &'static str,
    observed: Option<(Value, Duration)>,
}

impl<'a> Elector<'a> {
    fn new(server: &'a Cluster, name: &'static str, wall: &'static str) -> Self {
        let identity = "elector-1_5f0e";
        Self { server, name, identity, duration: 15, wall, observed: None }
    }

    fn record(&self, transitions: i64, acquired: &str) -> Value {
        json!({"holderIdentity": self.identity, "leaseDurationSeconds": self.duration,
            "acquireTime": acquired, "renewTime": self.wall, "leaseTransitions": transitions})
    }

    /// The record as client-go compares it: times cut to seconds.
    fn compared(spec: &Value) -> Value {
        let mut record = spec.clone();
        for time in ["acquireTime", "renewTime"] {
            let text = record[time].as_str().unwrap_or_default();
            record[time] = text.get(..19).unwrap_or(text).into();
        }
        record
    }

    /// One try to acquire or renew at this instant of its own clock. Whether it leads.
    async fn acquire_or_renew(&mut self, now: Duration) -> Result<bool, Failure> {
        let mut lease = self.server.lease(self.name).await?;
        if lease.is_null() {
            let spec = self.record(0, self.wall);
            let made = json!({"metadata": {"name": self.name}, "spec": spec});
            return Ok(self.server.create(made).await? == 201);
        }
        let record = Self::compared(&lease["spec"]);
        if self.observed.as_ref().is_none_or(|(seen, _)| *seen != record) {
            self.observed = Some((record.clone(), now));
        }
        let since = self.observed.as_ref().map_or(now, |(_, since)| *since);
        let holder = record["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let life = record["leaseDurationSeconds"].as_u64().unwrap_or_default();
        let valid = since + Duration::from_secs(life) > now;
        if !holder.is_empty() && valid && holder != self.identity {
            return Ok(false);
        }
        let transitions = record["leaseTransitions"].as_i64().unwrap_or_default();
        lease["spec"] = match holder == self.identity {
            true => self.record(transitions, lease["spec"]["acquireTime"].as_str().unwrap_or("")),
            false => self.record(transitions + 1, self.wall),
        };
        Ok(self.server.replace(self.name, lease).await? == 200)
    }

    async fn release(&self) -> Result<bool, Failure> {
        let mut lease = self.server.lease(self.name).await?;
        lease["spec"]["holderIdentity"] = "".into();
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        Ok(self.server.replace(self.name, lease).await? == 200)
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Its clock is years ahead, and steps back while it holds.
async fn theirs(server: Cluster) -> Outcome {
    let clock = ManualClock::new();
    let store = open_with(server.options().clock(std::sync::Arc::new(clock.clone()))).await?;
    let coordinator = coordinator(&store, "w")?;
    let scope = scope("lease/my-controller")?;
    let mut elector = Elector::new(&server, "my-controller", "2039-05-05T05:05:05.000000Z");
    ensure!(elector.acquire_or_renew(clock.uptime()).await?, "it could not begin");
    let held = |error: Error| match error {
        Error::Held { holder: Some(holder), .. } => holder,
        other => format!("{other:?}"),
    };
    for wall in ["2001-01-01T00:00:00.000000Z", "2039-05-05T05:05:06.000000Z"] {
        let refused = coordinator.acquire(&scope, &terms(5)).await.err().map(held);
        ensure_eq!(refused.as_deref(), Some("elector-1_5f0e#elsewhere"));
        clock.advance(secs(14));
        clock.step_wall(-400_000_000);
        ensure!(coordinator.acquire(&scope, &terms(5)).await.is_err(), "taken while it lived");
        elector.wall = wall;
        ensure!(elector.acquire_or_renew(clock.uptime()).await?, "it could not renew");
    }
    let listed: Vec<LeaseInfo> = coordinator.list(&"lease".parse()?, false).await?;
    ensure_eq!(listed.len(), 1);
    ensure_eq!(listed[0].holder.name(), "elector-1_5f0e");
    let before = listed[0].token;
    // It is gone. A full duration after its last renewal was seen, and not before, it may be taken.
    clock.advance(Duration::from_millis(14_900));
    ensure!(coordinator.acquire(&scope, &terms(5)).await.is_err(), "taken too early");
    clock.advance(Duration::from_millis(200));
    let ours = coordinator.acquire(&scope, &terms(5)).await?;
    ensure!(ours.token() > before, "token {} after {before}", ours.token());
    ensure_eq!(*spec(&server.lease("my-controller").await?, "leaseTransitions"), 1);
    ensure!(!elector.acquire_or_renew(clock.uptime()).await?, "it did not respect us");
    ours.release().await?;
    ensure!(elector.acquire_or_renew(clock.uptime()).await?, "a released lease is free for all");
    ensure!(coordinator.acquire(&scope, &terms(5)).await.is_err(), "two holders");
    // A release is seen at once.
    ensure!(elector.release().await?, "it could not release");
    Ok(coordinator.acquire(&scope, &terms(5)).await?.release().await?)
}

/// Our wall clock stands still and steps back; renewals are seen all the same.
async fn ours(server: Cluster) -> Outcome {
    let clock = ManualClock::new();
    let store = open_with(server.options().clock(std::sync::Arc::new(clock.clone()))).await?;
    let key = Key::new(LEASE, "lease/shared");
    let put = Put::new(key.clone(), "{}").ttl(secs(5)).expect(Expect::Absent);
    let mut revision = store.commit(put).await?.revision.ok_or("no revision")?;
    let mut elector = Elector::new(&server, "shared", "1999-01-01T00:00:00.000000Z");
    for n in 0..20 {
        ensure!(
            !elector.acquire_or_renew(clock.uptime()).await?,
            "it took over a live lease ({n})"
        );
        clock.advance(secs(1));
        clock.step_wall(if n == 10 { -60_000 } else { -1_000 });
        let touch = Touch { key: key.clone(), revision, ttl: secs(5) };
        revision = store.touch(vec![touch]).await?.remove(0).or_fail()?.revision;
    }
    ensure!(!elector.acquire_or_renew(clock.uptime()).await?, "it took over a live lease");
    // From here on we are silent.
    clock.advance(Duration::from_millis(4_900));
    ensure!(!elector.acquire_or_renew(clock.uptime()).await?, "it took over too early");
    clock.advance(Duration::from_millis(200));
    ensure!(elector.acquire_or_renew(clock.uptime()).await?, "it could not take over");
    let touch = Touch { key: key.clone(), revision, ttl: secs(5) };
    let late = store.touch(vec![touch]).await?.remove(0);
    ensure!(late.as_ref().is_err_and(Error::is_refusal), "a renewal after the end: {late:?}");
    ensure_eq!(*spec(&server.lease("shared").await?, "holderIdentity"), elector.identity);
    let put = Put::new(key.clone(), "{}").ttl(secs(5)).expect(Expect::Absent);
    ensure!(store.commit(put).await.is_err(), "two holders");
    Ok(())
}

async fn endless(server: Cluster) -> Outcome {
    let clock = ManualClock::new();
    let store = open_with(server.options().clock(std::sync::Arc::new(clock.clone()))).await?;
    let coordinator = coordinator(&store, "w")?;
    let made = json!({"metadata": {"name": "by-hand"}, "spec": {"holderIdentity": "somebody"}});
    ensure_eq!(server.create(made).await?, 201);
    let scope = scope("lease/by-hand")?;
    clock.advance(secs(1_000_000));
    ensure!(coordinator.acquire(&scope, &terms(5)).await.is_err(), "it never said it would end");
    // It does not say since when, either; the Lease does.
    let holder = coordinator.holder(&scope).await?.ok_or("nobody holds it")?;
    ensure!(holder.acquired_at_ms > 0, "{holder:?}");
    ensure!(coordinator.revoke(&scope, "it is in the way").await?, "nobody held it");
    Ok(coordinator.acquire(&scope, &terms(5)).await?.release().await?)
}

async fn waiter(server: Cluster) -> Outcome {
    let store = server.store().await?;
    let scope = scope("lease/awaited")?;
    let mut elector = Elector::new(&server, "awaited", "2001-01-01T00:00:00.000000Z");
    elector.duration = 2;
    for ends in ["it expires", "it lets go"] {
        ensure!(elector.acquire_or_renew(Duration::ZERO).await?, "it could not begin");
        let coordinator = coordinator(&store, "w")?;
        let waiting = {
            let (scope, terms) = (scope.clone(), terms(5).wait_forever());
            tokio::spawn(async move { coordinator.acquire(&scope, &terms).await })
        };
        tokio::time::sleep(Duration::from_millis(700)).await;
        ensure!(!waiting.is_finished(), "it was taken while the elector held it");
        if ends == "it lets go" {
            ensure!(elector.release().await?, "it could not release");
        }
        soon(ends, waiting).await???.release().await?;
    }
    Ok(())
}

/// An elector that takes over replaces the spec and leaves our annotations where they are.
async fn annotations(server: Cluster) -> Outcome {
    let store = server.store().await?;
    let coordinator = coordinator(&store, "w")?;
    let scope = scope("lease/taken")?;
    let held = coordinator.acquire(&scope, &terms(6)).await?;
    let mut taken = server.lease("taken").await?;
    taken["spec"]["holderIdentity"] = "elector-9".into();
    taken["spec"]["leaseTransitions"] = 1.into();
    ensure_eq!(server.replace("taken", taken).await?, 200);
    let holder = coordinator.holder(&scope).await?.ok_or("nobody")?;
    ensure_eq!(holder.holder.name(), "elector-9");
    ensure!(holder.token > held.token(), "{} after {}", holder.token, held.token());
    let loss = soon("the loss", held.lost()).await?;
    ensure!(loss.to_string().contains("elector-9"), "{loss}");
    // An edit of the labels is none of the holder's business.
    ensure!(coordinator.revoke(&scope, "").await?, "nobody held it");
    let held = coordinator.acquire(&scope, &terms(30)).await?;
    let mut edited = server.lease("taken").await?;
    edited["metadata"]["labels"]["team"] = "blue".into();
    ensure_eq!(server.replace("taken", edited).await?, 200);
    held.renew().await?;
    held.renew().await?;
    let holder = coordinator.holder(&scope).await?.ok_or("nobody")?;
    ensure_eq!(holder.token, held.token());
    ensure_eq!(server.lease("taken").await?["metadata"]["labels"]["team"], "blue");
    Ok(held.release().await?)
}

/// A Lease that was deleted stays while it has finalizers. Whoever took it would lose it unseen.
async fn going(server: Cluster) -> Outcome {
    let made =
        json!({"metadata": {"name": "jobs.x", "finalizers": ["tenure.dev/test"]}, "spec": {}});
    ensure_eq!(server.create(made).await?, 201);
    ensure_eq!(server.delete("jobs.x").await?, 200);
    let coordinator = coordinator(&server.store().await?, "w")?;
    let scope = scope("jobs/x")?;
    let error = coordinator.acquire(&scope, &terms(30)).await.err();
    let mut lease = server.lease("jobs.x").await?;
    lease["metadata"]["finalizers"] = json!([]);
    ensure_eq!(server.replace("jobs.x", lease).await?, 200);
    ensure!(error.as_ref().is_some_and(|e| e.to_string().contains("being deleted")), "{error:?}");
    Ok(coordinator.acquire(&scope, &terms(30)).await?.release().await?)
}

/// `kubectl edit`, with another holder or with none.
async fn replaced(server: Cluster) -> Outcome {
    let coordinator = coordinator(&server.store().await?, "w")?;
    let scope = scope("jobs/x")?;
    for holder in ["somebody", ""] {
        let held = coordinator.acquire(&scope, &terms(30)).await?;
        let mut lease = server.lease("jobs.x").await?;
        lease["spec"]["holderIdentity"] = holder.into();
        ensure_eq!(server.replace("jobs.x", lease).await?, 200);
        let _ = held.renew().await;
        let loss = soon("the loss", held.lost()).await?;
        ensure!(!loss.is_voluntary(), "{loss}");
        let mut lease = server.lease("jobs.x").await?;
        ensure_eq!(*spec(&lease, "holderIdentity"), holder);
        lease["spec"]["holderIdentity"] = "".into();
        ensure_eq!(server.replace("jobs.x", lease).await?, 200);
    }
    Ok(())
}
