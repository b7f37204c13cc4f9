//! An API server that answers badly, late or not at all, and Leases that vanish.

use std::time::Duration;

use tenure::clock::{Clock as _, SystemClock};
use tenure::lease::LEASE;
use tenure::store::{Cause, Event, Expect, Put, Query, Store, WatchRequest};
use tenure::{Error, Key};
use tenure_conformance::harness::Trials;
use tenure_testkit::{ApiServer, Fault};

use crate::common::{
    NAMESPACE, OrFail, Outcome, coordinator, ensure, ensure_eq, lease, open, open_with, options,
    scope, soon, spec, standin, terms,
};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("kubernetes::a_deleted_lease_is_not_brought_back_by_its_holder", deleted);
    trials.test("kubernetes::tokens_rise_though_transitions_restart", tokens);
    trials.test("kubernetes::both_reasons_of_a_409_mean_that_somebody_was_faster", conflicts);
    trials.test("kubernetes::lost_replies_are_unknown_and_settled_by_the_nonce", lost_replies);
    trials.test("kubernetes::answers_are_told_apart_by_whether_it_can_have_happened", answers);
    trials.test("kubernetes::no_answer_in_time_is_unknown", silence);
    trials.test("kubernetes::a_watch_goes_on_after_a_cut", cut);
    trials.test("kubernetes::a_watch_that_is_ended_at_once_is_not_asked_for_again_at_once", ended);
    trials.test("kubernetes::a_watch_that_died_silently_is_noticed_though_leases_come_due", mute);
    trials.test("kubernetes::bookmarks_keep_a_quiet_watch_fresh", bookmarks);
    trials.test("kubernetes::a_watch_that_history_outran_says_so", outrun);
    trials.test("kubernetes::an_outage_is_survived", outage);
    trials.test("kubernetes::whoever_may_only_look_is_told_of_an_expiry_too", only_looking);
    trials.test("kubernetes::credentials_and_addresses_are_checked_on_connecting", credentials);
}

fn put(id: &str, value: &str) -> Put {
    Put::new(Key::new(LEASE, id), value.to_owned()).ttl(Duration::from_secs(30))
}

async fn deleted() -> Outcome {
    let server = standin();
    let coordinator = coordinator(&open(&server).await?, "w")?;
    let held = coordinator.acquire(&scope("jobs/x")?, &terms(30)).await?;
    ensure_eq!(server.delete(NAMESPACE, "jobs.x"), 200);
    // Whatever its renewal is answered, it must not create the Lease anew.
    let _ = held.renew().await;
    let loss = soon("the loss", held.lost()).await?;
    ensure!(!loss.is_voluntary(), "{loss}");
    ensure!(lease(&server, "jobs.x").is_null(), "the Lease is back: {}", lease(&server, "jobs.x"));
    Ok(())
}

async fn tokens() -> Outcome {
    let server = standin();
    let coordinator = coordinator(&open(&server).await?, "w")?;
    let scope = scope("jobs/x")?;
    let mut last = 0;
    for _ in 0..3 {
        let held = coordinator.acquire(&scope, &terms(30)).await?;
        ensure_eq!(*spec(&lease(&server, "jobs.x"), "leaseTransitions"), 0);
        ensure!(held.token() > last, "token {} after {last}", held.token());
        last = held.token();
        held.release().await?;
        ensure_eq!(server.delete(NAMESPACE, "jobs.x"), 200);
    }
    Ok(())
}

/// Another handle is faster each time, and this one's memory of the Lease is old.
async fn conflicts() -> Outcome {
    let server = standin();
    let (here, there) = (open(&server).await?, open(&server).await?);
    // AlreadyExists: somebody made it and has deleted it since.
    server.break_next("POST", Fault::Because(409, "AlreadyExists"));
    let created = here.commit(put("jobs/x", "a").expect(Expect::Absent)).await?;
    ensure!(created.revision.is_some(), "a 409 is no answer while the Lease is not there");
    // AlreadyExists: it was made after this handle had looked for it.
    server.take_seen();
    server.break_next("GET", Fault::Because(404, "NotFound"));
    there.commit(put("jobs/x", "made by both")).await?;
    let posts = server.take_seen().into_iter().filter(|seen| seen.method == "POST");
    ensure_eq!(posts.map(|seen| seen.status).collect::<Vec<_>>(), [409].to_vec());
    let refused = there.commit(put("jobs/x", "b").expect(Expect::Absent)).await;
    ensure!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    // Conflict: what this handle remembers was changed by the other.
    for n in 0..5 {
        there.commit(put("jobs/x", &format!("there {n}"))).await?;
        here.commit(put("jobs/x", &format!("here {n}"))).await?;
    }
    let object = here.get(&Key::new(LEASE, "jobs/x")).await?.ok_or("gone")?;
    ensure_eq!(object.version, 12);
    let stale = here.commit(put("jobs/x", "c").expect(Expect::Version(11))).await;
    ensure!(matches!(stale, Err(Error::Conflict { .. })), "{stale:?}");
    let statuses: Vec<_> = server.take_seen().iter().map(|seen| seen.status).collect();
    ensure!(statuses.iter().filter(|status| **status == 409).count() >= 5, "{statuses:?}");
    Ok(())
}

async fn lost_replies() -> Outcome {
    let server = standin();
    let store = open(&server).await?;
    let coordinator = coordinator(&store, "w")?;
    for (n, method) in ["POST", "PUT"].into_iter().enumerate() {
        // First the Lease is made, then it is there.
        server.break_next(method, Fault::LoseReply);
        server.take_seen();
        let held = coordinator.acquire(&scope("jobs/x")?, &terms(30)).await?;
        let seen = server.take_seen().into_iter();
        let writes: Vec<_> = seen.filter(|seen| seen.method != "GET").collect();
        // Sent once, found to be ours, and renewed: nobody had said how long it lives.
        let methods: Vec<_> = writes.iter().map(|seen| seen.method.as_str()).collect();
        ensure_eq!(methods, [method, "PUT"].to_vec());
        // So the tenure began with the state that the renewal replaced.
        let began = &writes[1].body["metadata"]["resourceVersion"];
        ensure_eq!(held.token().to_string(), *began);
        ensure_eq!(*spec(&lease(&server, "jobs.x"), "leaseTransitions"), serde_json::json!(n));
        // A renewal whose reply is lost is found to be ours.
        server.break_next("PUT", Fault::LoseReply);
        let _ = held.renew().await;
        soon("the renewal", async {
            while held.renew().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await?;
        held.release().await?;
    }
    server.break_next("POST", Fault::LoseReply);
    let error = store.commit(put("jobs/y", "a")).await.err();
    ensure!(matches!(error, Some(Error::Unknown { .. })), "{error:?}");
    ensure!(!lease(&server, "jobs.y").is_null(), "it was applied");
    Ok(())
}

async fn answers() -> Outcome {
    let server = standin();
    let store = open(&server).await?;
    for (n, (fault, code)) in [
        (Fault::LoseRequest, "unknown"),
        (Fault::Answer(500), "unknown"),
        (Fault::Answer(504), "unknown"),
        (Fault::Because(409, "OnPurpose"), "unknown"),
        (Fault::Answer(429), "unavailable"),
        (Fault::Answer(401), "unavailable"),
        (Fault::Answer(403), "refused"),
        (Fault::Answer(422), "refused"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("jobs.n{n}");
        server.take_seen();
        server.break_next("POST", fault);
        let error = store.commit(put(&format!("jobs/n{n}"), "a")).await.err();
        ensure_eq!(error.as_ref().map(Error::code), Some(code));
        ensure!(lease(&server, &name).is_null(), "{fault:?} was applied");
        // Never sent again behind the caller's back.
        let posts = server.take_seen().iter().filter(|seen| seen.method == "POST").count();
        ensure_eq!(posts, 1);
        // A read never changed anything, so its failure is never unknown.
        server.break_next("GET", fault);
        let error = store.get(&Key::new(LEASE, format!("jobs/n{n}"))).await.err();
        let read = if code == "unknown" { "unavailable" } else { code };
        ensure_eq!(error.as_ref().map(Error::code), Some(read));
        store.commit(put(&format!("jobs/n{n}"), "a")).await?;
    }
    Ok(())
}

async fn silence() -> Outcome {
    let server = standin();
    let store = open_with(options(&server).request_timeout(Duration::from_millis(300))).await?;
    server.break_next("POST", Fault::Delay(Duration::from_secs(2)));
    let error = store.commit(put("jobs/x", "a")).await.err();
    ensure!(matches!(error, Some(Error::Unknown { .. })), "{error:?}");
    let object = store.get(&Key::new(LEASE, "jobs/x")).await?;
    ensure!(object.is_some(), "it was applied all the same");
    Ok(())
}

/// Writes, and is told of exactly that.
async fn told(store: &Store, watch: &mut tenure::store::Watch, value: &str) -> Outcome {
    let revision = store.commit(put("jobs/x", value)).await?.revision;
    let batch = soon("the news", watch.next()).await?.ok_or("the watch ended")?.or_fail()?;
    ensure_eq!(Some(batch.revision), revision);
    let Event::Put(object) = &batch.events[0] else { return Err("not a put".into()) };
    ensure_eq!(object.payload, value.as_bytes());
    Ok(())
}

async fn watching(
    server: &ApiServer,
) -> Result<(Store, Store, tenure::store::Watch), tenure::Error> {
    let (here, there) = (open(server).await?, open(server).await?);
    let watch = here.watch(&WatchRequest::kind(LEASE)).await?;
    Ok((here, there, watch))
}

async fn cut() -> Outcome {
    let server = standin();
    let (_here, there, mut watch) = watching(&server).await?;
    for n in 0..5 {
        told(&there, &mut watch, &n.to_string()).await?;
        server.cut_watches();
        if n % 2 == 0 {
            server.break_next("WATCH", Fault::Answer(500));
        }
    }
    Ok(())
}

/// Something between us and the server answers watches with 200 and nothing.
async fn ended() -> Outcome {
    const TIMES: usize = 5;
    let server = standin();
    let (_here, there, mut watch) = watching(&server).await?;
    told(&there, &mut watch, "a").await?;
    (0..TIMES).for_each(|_| server.break_next("WATCH", Fault::End));
    server.take_seen();
    let before = SystemClock.uptime();
    server.cut_watches();
    let mut watches = 0;
    soon("a watch that stays", async {
        while watches <= TIMES {
            tokio::time::sleep(Duration::from_millis(10)).await;
            watches += self::watches(&server);
        }
    })
    .await?;
    let took = SystemClock.uptime() - before;
    ensure!(took > Duration::from_secs(2), "{watches} watches were asked for within {took:?}");
    told(&there, &mut watch, "b").await
}

fn watches(server: &ApiServer) -> usize {
    server.take_seen().iter().filter(|seen| seen.target.contains("watch=true")).count()
}

/// The watch is open and mute. Meanwhile a lease that somebody else renews comes due again and again, as
/// far as the watcher knows: looking after that is no sign of life of the watch.
async fn mute() -> Outcome {
    let server = standin();
    let (watch_time, answer) = (Duration::from_secs(1), Duration::from_secs(3));
    let options = options(&server).watch_time(watch_time).request_timeout(answer);
    let (here, there) = (open_with(options).await?, open(&server).await?);
    let holder = coordinator(&there, "holder")?;
    let held = holder.acquire(&scope("jobs/held")?, &terms(3)).await?;
    server.break_next("WATCH", Fault::Mute);
    server.take_seen();
    let mut watch = here.watch(&WatchRequest::kind(LEASE)).await?;
    ensure_eq!(watches(&server), 1);
    soon("another watch", async {
        while watches(&server) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await?;
    told(&there, &mut watch, "a").await?;
    ensure!(held.is_valid(), "it was lost meanwhile: {:?}", held.loss());
    Ok(held.release().await?)
}

async fn bookmarks() -> Outcome {
    let server = standin();
    let (_here, there, mut watch) = watching(&server).await?;
    told(&there, &mut watch, "a").await?;
    for _ in 0..20 {
        server.write_elsewhere();
    }
    // A bookmark tells that there was nothing for us: the first may have been under way already.
    let enough = server.bookmarks() + 2;
    soon("bookmarks", async {
        while server.bookmarks() < enough {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await?;
    server.compact();
    server.cut_watches();
    told(&there, &mut watch, "b").await
}

async fn outrun() -> Outcome {
    for by_event in [true, false] {
        let server = standin();
        let (here, there, mut watch) = watching(&server).await?;
        told(&there, &mut watch, "a").await?;
        server.outrun_watches(by_event);
        let end = soon("the end", watch.next()).await?;
        ensure!(matches!(end, Some(Err(Error::Compacted { .. }))), "{end:?}");
        ensure!(watch.next().await.is_none(), "it went on after its end");
        // Whoever lists again can watch again.
        let mut watch = here.watch(&WatchRequest::kind(LEASE)).await?;
        told(&there, &mut watch, "b").await?;
        // And whoever waits in line has done so.
        let (holder, waiter) = (coordinator(&there, "holder")?, coordinator(&here, "waiter")?);
        let held = holder.acquire(&scope("jobs/line")?, &terms(30)).await?;
        let waiting = {
            let (scope, terms) = (scope("jobs/line")?, terms(30).wait_forever());
            tokio::spawn(async move { waiter.acquire(&scope, &terms).await })
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.outrun_watches(by_event);
        tokio::time::sleep(Duration::from_millis(1200)).await;
        held.release().await?;
        soon("the lease", waiting).await???.release().await?;
    }
    Ok(())
}

async fn outage() -> Outcome {
    let server = standin();
    let (here, there, mut watch) = watching(&server).await?;
    let coordinator = coordinator(&here, "w")?;
    let held = coordinator.acquire(&scope("jobs/kept")?, &terms(10)).await?;
    ensure!(soon("the news", watch.next()).await?.is_some(), "the watch ended");
    server.go_away(true);
    let error = there.get(&Key::new(LEASE, "jobs/x")).await.err();
    ensure_eq!(error.as_ref().map(Error::code), Some("unavailable"));
    let error = there.commit(put("jobs/x", "a")).await.err();
    ensure_eq!(error.as_ref().map(Error::code), Some("unavailable"));
    // A renewal is due in the middle of it, and tried until it succeeds.
    tokio::time::sleep(Duration::from_millis(4500)).await;
    server.go_away(false);
    told(&there, &mut watch, "b").await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    ensure!(held.is_valid(), "an outage shorter than its life ended it: {:?}", held.loss());
    Ok(held.release().await?)
}

async fn credentials() -> Outcome {
    let server = standin();
    let folder = tempfile::tempdir().or_fail()?;
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, server.kubeconfig_with("wrong", "jobs")).or_fail()?;
    let error = open_with(options(&server).kubeconfig(&path)).await.err();
    ensure_eq!(error.as_ref().map(Error::code), Some("unavailable"));
    ensure!(error.as_ref().is_some_and(|e| e.to_string().contains("credentials")), "{error:?}");
    for (text, code) in [("nonsense: [", "invalid"), ("", "invalid")] {
        std::fs::write(&path, text).or_fail()?;
        let error = open_with(options(&server).kubeconfig(&path)).await.err();
        ensure_eq!(error.as_ref().map(Error::code), Some(code));
    }
    // A program that hands out the token, as clusters in the cloud have it.
    let plain = server.kubeconfig_with("TOKEN", "jobs");
    let token = std::fs::read_to_string(server.kubeconfig()).or_fail()?;
    let token =
        token.split("token: ").nth(1).and_then(|rest| rest.lines().next()).ok_or("token")?;
    let program = format!(
        "exec:\n      apiVersion: client.authentication.k8s.io/v1\n      interactiveMode: Never\n      \
         command: echo\n      args: ['{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\
         \"kind\":\"ExecCredential\",\"status\":{{\"token\":\"{token}\"}}}}']"
    );
    std::fs::write(&path, plain.replace("token: TOKEN", &program)).or_fail()?;
    open_with(options(&server).kubeconfig(&path)).await?.list(&Query::new(LEASE)).await?;
    let address = server.kubeconfig_with("x", "jobs");
    let nobody = address.lines().map(|line| match line.split_once("http://") {
        Some((indent, _)) => format!("{indent}http://127.0.0.1:1\n"),
        None => format!("{line}\n"),
    });
    std::fs::write(&path, nobody.collect::<String>()).or_fail()?;
    let error = open_with(options(&server).kubeconfig(&path)).await.err();
    ensure_eq!(error.as_ref().map(Error::code), Some("unavailable"));
    let error = open_with(options(&server).context("other")).await.err();
    ensure_eq!(error.as_ref().map(Error::code), Some("invalid"));
    Ok(())
}

async fn only_looking() -> Outcome {
    let server = standin();
    let (_here, there, mut watch) = watching(&server).await?;
    // Every attempt of the watcher to empty the Lease is forbidden.
    there.commit(put("jobs/x", "a").ttl(Duration::from_secs(1))).await?;
    server.break_next("PUT", Fault::Answer(403));
    let begun = soon("the news", watch.next()).await?.ok_or("the watch ended")?.or_fail()?;
    let ended = soon("the end", watch.next()).await?.ok_or("the watch ended")?.or_fail()?;
    ensure!(matches!(ended.events[0], Event::Delete { cause: Cause::Expired, .. }), "{ended:?}");
    ensure!(ended.revision >= begun.revision, "{ended:?}");
    // It was not written down: the Lease still names its holder.
    let left = lease(&server, "jobs.x");
    ensure!(spec(&left, "holderIdentity").as_str().is_some_and(|who| !who.is_empty()), "{left}");
    Ok(())
}
