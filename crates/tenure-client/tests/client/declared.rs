//! Declared leases across two services and a server: what is carried, and what is stopped.

use std::sync::Arc;
use std::time::Duration;

use tenure::Key;
use tenure::lease::{Scope, Terms};
use tenure_client::{Ended, LeaseContext, ReceiveLease, RunError};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tonic::{Code, Request};
use tonic_health::pb::health_client::HealthClient;

use crate::common::{Outcome, eventually, refused};
use crate::scene::{SCOPE, Scene, TTL, lost, stopped};
use crate::services::{Ledger, OnDrop, Told, ask, channel, client, listen, next};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("declared::a_nested_call_sees_scope_and_token", carried);
    trials.test("declared::revoked_stops_the_work_and_the_nested_call", revoked);
    trials.test("declared::a_lost_lease_stops_calls_two_services_deep", two_deep);
    trials.test("declared::who_ignores_it_is_refused_by_the_fence", ignored);
    trials.test("declared::calls_outlive_the_present_validity", outlives);
    trials.test("declared::the_deadline_stops_the_work_and_then_releases", deadline);
    trials.test("declared::nested_leases_are_carried_and_lost_together", nested);
    trials.test("declared::streams_live_and_end_with_the_lease", streams);
    trials.test("declared::a_silent_caller_is_found_out_by_looking", silent);
    trials.test("declared::a_caller_who_gives_up_stops_everything", given_up);
    trials.test("declared::failure_releases_and_is_told", failure);
    trials.test("declared::a_panic_releases", panicked);
    trials.test("declared::explicit_contexts_go_along_to_other_tasks", explicit);
    trials.test("declared::malformed_metadata_is_refused", malformed);
    trials.test("declared::outside_a_lease_nothing_is_carried", outside);
}

async fn carried() -> Outcome {
    let mut scene = Scene::new().await?;
    let front = scene.front(&scene.ledger).await?;
    client(&front)?.check(ask("report")).await.map_err(|status| status.to_string())?;
    let first = scene.called().await?;
    scene.all_of(vec![stopped("front", true), Told::Finished("done".into())]).await?;
    ensure_eq!(scene.holder().await?, None, "released with the work");
    client(&front)?.check(ask("report")).await.map_err(|status| status.to_string())?;
    let second = scene.called().await?;
    ensure!(second > first, "token {second} after {first}");
    Ok(())
}

async fn revoked() -> Outcome {
    let mut scene = Scene::new().await?;
    let front = scene.front(&scene.ledger).await?;
    let mut caller = client(&front)?;
    let calling = tokio::spawn(async move { caller.check(ask("hang")).await });
    let token = scene.called().await?;
    ensure_eq!(scene.holder().await?, Some(token));
    scene.operator.revoke(&SCOPE.parse()?, "for the test").await?;
    let told = format!(
        "the work was stopped: lease {SCOPE} (token {token}) is lost: revoked by {}: for the test",
        scene.operator.owner()
    );
    // The ledger knows only that its caller has gone; it does not look at leases here.
    let all = vec![stopped("front", false), stopped("ledger", true), Told::Finished(told)];
    scene.all_of(all).await?;
    let status = refused(calling.await?)?;
    ensure_eq!(status.code(), Code::Aborted, "{status}");
    Ok(())
}

async fn two_deep() -> Outcome {
    let mut scene = Scene::new().await?;
    let between = Ledger {
        store: scene.store.clone(),
        mouth: scene.mouth.clone(),
        go: Arc::clone(&scene.go),
        next: Some(scene.client.clone()),
    };
    let between = listen(between, ReceiveLease::new()).await?;
    let front = scene.front(&between).await?;
    let mut caller = client(&front)?;
    let calling = tokio::spawn(async move { caller.check(ask("forward")).await });
    let token = scene.called().await?;
    ensure_eq!(scene.called().await?, token, "passed on unchanged");
    scene.operator.revoke(&SCOPE.parse()?, "").await?;
    for _ in 0..4 {
        match next(&mut scene.ears).await? {
            Told::Stopped { .. } | Told::Finished(_) => {}
            other => return Err(Failure::new(format!("{other:?}"))),
        }
    }
    ensure!(calling.await?.is_err());
    Ok(())
}

async fn ignored() -> Outcome {
    let mut scene = Scene::new().await?;
    let front = scene.front(&scene.ledger).await?;
    let entry = Key::new("entry", "42");
    let mut caller = client(&front)?;
    let calling = tokio::spawn(async move { caller.check(ask("ignore")).await });
    let token = scene.called().await?;
    let scope: Scope = SCOPE.parse()?;
    scene.operator.revoke(&scope, "").await?;
    for _ in 0..3 {
        next(&mut scene.ears).await?;
    }
    ensure!(calling.await?.is_err());
    // Somebody else has it by now; the one who did not stop writes only then.
    let taken = scene.operator.acquire(&scope, &Terms::new()).await?;
    ensure!(taken.token() > token);
    scene.go.notify_one();
    ensure_eq!(next(&mut scene.ears).await?, Told::Wrote(Err("lost")));
    ensure!(scene.store.get(&entry).await?.is_none(), "nothing was written");
    taken.release().await?;
    // The same write in time is let through.
    client(&front)?.check(ask("write")).await.map_err(|status| status.to_string())?;
    ensure!(scene.store.get(&entry).await?.is_some(), "it was written");
    Ok(())
}

/// A call goes on for as long as the lease is renewed, believing the caller or looking itself.
async fn outlives() -> Outcome {
    for checking in [false, true] {
        let mut scene = Scene::with(checking).await?;
        let front = scene.front(&scene.ledger).await?;
        let mut caller = client(&front)?;
        let calling = tokio::spawn(async move { caller.check(ask("wait")).await });
        let token = scene.called().await?;
        tokio::time::sleep(2 * TTL).await;
        ensure_eq!(scene.holder().await?, Some(token), "renewed all the while");
        scene.go.notify_one();
        calling.await?.map_err(|status| status.to_string())?;
    }
    Ok(())
}

async fn deadline() -> Outcome {
    let mut scene = Scene::new().await?;
    let lease = scene.lease()?.ttl(Duration::from_secs(60)).deadline(Duration::from_millis(400));
    let (mut client, mouth) = (scene.client.clone(), scene.mouth.clone());
    let ran = lease.run("42", |context| async move {
        let _guard = OnDrop("front", mouth, context);
        client.check(ask("hang")).await
    });
    let ran = refused(ran.await)?;
    ensure!(
        matches!(&ran, RunError::Stopped(Ended::Deadline { lease }) if lease.as_deref() == Some(SCOPE)),
        "{ran}"
    );
    let told = next(&mut scene.ears).await?;
    ensure!(matches!(told, Told::Called { deadline: true, .. }), "{told:?}");
    // Both had stopped, or were told to, while the lease was still held; it is free by now.
    scene.all_of(vec![stopped("front", true), stopped("ledger", true)]).await?;
    ensure_eq!(scene.holder().await?, None, "released after the work");
    Ok(())
}

async fn nested() -> Outcome {
    let mut scene = Scene::new().await?;
    let (outer, inner) = (scene.lease()?, scene.module.declare("invoice")?);
    let (mut client, mouth) = (scene.client.clone(), scene.mouth.clone());
    let working = tokio::spawn(async move {
        let inner = &inner;
        let ran = outer.run("42", |_| async {
            let ran = inner.run("7", |context| async {
                let _guard = OnDrop("inner", mouth, context);
                client.check(ask("hang")).await
            });
            ran.await.map(drop).map_err(|error| error.to_string())
        });
        ran.await
    });
    let Told::Called { leases, .. } = next(&mut scene.ears).await? else {
        return Err(Failure::new("not called"));
    };
    let ids: Vec<_> = leases.iter().map(|(id, _)| id.as_str()).collect();
    ensure_eq!(ids, [SCOPE, "module.front.invoice/7"]);
    scene.operator.revoke(&SCOPE.parse()?, "").await?;
    scene.all_of(vec![stopped("inner", false), stopped("ledger", true)]).await?;
    let ended = refused(working.await?)?;
    ensure!(
        matches!(&ended, RunError::Stopped(Ended::Lost { lease, .. }) if lease == SCOPE),
        "{ended}"
    );
    let inner: Scope = "module.front.invoice/7".parse()?;
    let operator = &scene.operator;
    eventually("the inner lease is let go of", || async {
        Ok(operator.holder(&inner).await?.is_none())
    })
    .await
}

async fn streams() -> Outcome {
    let mut scene = Scene::new().await?;
    let acquired = scene.lease()?.acquire("42").await?;
    let mut client = scene.client.clone();
    let answer = acquired.context().enter(client.watch(ask("")));
    let mut stream = answer.await.map_err(|status| status.to_string())?.into_inner();
    scene.called().await?;
    for _ in 0..2 {
        let message = stream.message().await.map_err(|status| status.to_string())?;
        ensure_eq!(message.map(|message| message.status), Some(1), "it knows its lease");
    }
    scene.operator.revoke(&SCOPE.parse()?, "").await?;
    // Read outside of the context: the stream belongs to the work all the same.
    let message = tokio::time::timeout(Duration::from_secs(10), stream.message()).await;
    let status = refused(message.map_err(|_| "the stream did not end")?)?;
    ensure!(lost(&status), "{status:?}");
    ensure_eq!(next(&mut scene.ears).await?, stopped("stream", true));
    let status = refused(acquired.context().enter(client.watch(ask(""))).await)?;
    ensure!(lost(&status), "no further calls: {status:?}");
    ensure_eq!(refused(acquired.release().await)?.code(), "lost");
    Ok(())
}

/// The caller neither says anything nor hangs up, and its time has run out when it calls.
async fn silent() -> Outcome {
    let mut scene = Scene::with(true).await?;
    let lease = scene.operator.acquire(&SCOPE.parse()?, &Terms::new().ttl(TTL)).await?;
    let mut caller = HealthClient::new(channel(&scene.ledger)?);
    let mut request = Request::new(ask("hang"));
    let carried = format!("{SCOPE};token={};valid=0", lease.token());
    request.metadata_mut().insert("tenure-lease", carried.parse().map_err(|_| "metadata")?);
    let calling = tokio::spawn(async move { caller.check(request).await });
    scene.called().await?;
    // Held, however often it is looked at; and then not.
    tokio::time::sleep(TTL).await;
    ensure!(scene.ears.try_recv().is_err(), "stopped early");
    scene.operator.revoke(&SCOPE.parse()?, "").await?;
    ensure_eq!(next(&mut scene.ears).await?, stopped("ledger", false));
    let status = refused(calling.await?)?;
    ensure!(lost(&status), "{status:?}");
    Ok(())
}

/// Nobody lost anything; the one who wanted the work done has gone.
async fn given_up() -> Outcome {
    let mut scene = Scene::new().await?;
    let front = scene.front(&scene.ledger).await?;
    let mut caller = client(&front)?;
    let calling = tokio::spawn(async move { caller.check(ask("hang")).await });
    scene.called().await?;
    calling.abort();
    scene.all_of(vec![stopped("front", true), stopped("ledger", true)]).await?;
    eventually("it is let go of", || async { Ok(scene.holder().await?.is_none()) }).await
}

async fn failure() -> Outcome {
    let mut scene = Scene::new().await?;
    let front = scene.front(&scene.ledger).await?;
    ensure!(client(&front)?.check(ask("nonsense")).await.is_err());
    scene.called().await?;
    ensure_eq!(next(&mut scene.ears).await?, stopped("front", true));
    let told = next(&mut scene.ears).await?;
    ensure!(matches!(&told, Told::Finished(text) if text.contains("the work failed")), "{told:?}");
    ensure_eq!(scene.holder().await?, None, "released");
    let held = scene.operator.acquire(&SCOPE.parse()?, &Terms::new()).await?;
    ensure!(client(&front)?.check(ask("report")).await.is_err());
    let told = next(&mut scene.ears).await?;
    ensure!(matches!(&told, Told::Finished(text) if text.contains("did not begin")), "{told:?}");
    held.release().await?;
    Ok(())
}

async fn panicked() -> Outcome {
    let scene = Scene::new().await?;
    let lease = scene.lease()?.ttl(Duration::from_secs(600));
    let working = tokio::spawn(async move {
        let ran = lease.run("42", |_| async {
            tokio::task::yield_now().await;
            if LeaseContext::current().is_some() {
                // A panic without the noise.
                std::panic::resume_unwind(Box::new("for the test"));
            }
            Ok::<_, Failure>(())
        });
        ran.await
    });
    ensure!(working.await.is_err_and(|error| error.is_panic()));
    eventually("it is let go of", || async { Ok(scene.holder().await?.is_none()) }).await
}

async fn explicit() -> Outcome {
    let mut scene = Scene::new().await?;
    let acquired = scene.lease()?.acquire("42").await?;
    let (context, mut client) = (acquired.context().clone(), scene.client.clone());
    let calling = tokio::spawn(async move {
        assert!(LeaseContext::current().is_none(), "a task of its own starts without");
        let mut request = Request::new(ask("hang"));
        request.extensions_mut().insert(context);
        client.check(request).await
    });
    ensure_eq!(scene.called().await?, acquired.lease().token());
    // The work is done, so nothing that was part of it goes on.
    acquired.release().await?;
    ensure_eq!(next(&mut scene.ears).await?, stopped("ledger", true));
    let status = refused(calling.await?)?;
    ensure_eq!(status.code(), Code::Cancelled, "{status:?}");
    Ok(())
}

async fn malformed() -> Outcome {
    let mut scene = Scene::new().await?;
    let mut caller = HealthClient::new(channel(&scene.ledger)?);
    for bad in ["nonsense", "a/k;token=x", "%zz;token=1", ""] {
        let mut request = Request::new(ask("report"));
        request.metadata_mut().insert("tenure-lease", bad.parse().map_err(|_| "metadata")?);
        let status = refused(caller.check(request).await)?;
        ensure_eq!(status.code(), Code::InvalidArgument, "{bad:?}: {status}");
        ensure!(status.message().contains("write SCOPE;token=NUMBER"), "{status}");
    }
    ensure!(scene.ears.try_recv().is_err(), "the handler was not called");
    Ok(())
}

async fn outside() -> Outcome {
    let mut scene = Scene::new().await?;
    let mut client = scene.client.clone();
    client.check(ask("report")).await.map_err(|status| status.to_string())?;
    let nothing = Told::Called { leases: Vec::new(), deadline: false };
    ensure_eq!(next(&mut scene.ears).await?, nothing);
    Ok(())
}
