//! What the client needs of a cluster: the rights in the manifest and no others, and the credentials
//! that a kubeconfig can hold, over TLS.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::Error;
use tenure::lease::LEASE;
use tenure::store::{Query, WatchRequest};
use tenure_conformance::harness::Trials;
use tenure_testkit::{ApiServer, Seen};

use crate::common::{
    NAMESPACE, OrFail, Outcome, coordinator, ensure, ensure_eq, open, open_with, options, scope,
    soon, standin, terms,
};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("kubernetes::the_manifest_grants_what_is_used_and_no_more", manifest);
    trials.test("kubernetes::whoever_may_not_watch_is_told_instead_of_waiting", unwatched);
    trials.test("kubernetes::a_namespace_that_is_not_there_is_named", nowhere);
    trials.test("kubernetes::tokens_and_certificates_are_shown_over_tls", over_tls);
}

/// The verb that a cluster asks a right for.
fn verb(seen: &Seen) -> &'static str {
    let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
    match (seen.method.as_str(), path.ends_with("/leases")) {
        ("GET", _) if query.contains("watch=true") => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("POST", true) => "create",
        ("PUT", false) => "update",
        ("DELETE", false) => "delete",
        ("PATCH", _) => "patch",
        _ => "nothing that there is",
    }
}

/// The words of the one list that follows a name in the manifest.
fn listed<'a>(manifest: &'a str, name: &str) -> Option<BTreeSet<&'a str>> {
    let (_, rest) = manifest.split_once(&format!("{name}: ["))?;
    let (list, _) = rest.split_once(']')?;
    Some(list.split(',').map(|word| word.trim().trim_matches('"')).collect())
}

/// Everything that the client does: leases, waiters, lists, watches, an expiry, and deletion if wanted.
async fn everything(server: &ApiServer, idle: Option<Duration>) -> Outcome {
    let options = options(server);
    let store = open_with(match idle {
        Some(idle) => options.delete_idle_after(idle),
        None => options,
    })
    .await?;
    let (one, two) = (coordinator(&store, "one")?, coordinator(&store, "two")?);
    let scope = scope("jobs/x")?;
    let mut watch = store.watch(&WatchRequest::kind(LEASE)).await?;
    let held = one.acquire(&scope, &terms(30)).await?;
    held.renew().await?;
    let waiting = {
        let (scope, terms) = (scope.clone(), terms(30).wait_forever());
        tokio::spawn(async move { two.acquire(&scope, &terms).await })
    };
    soon("news", watch.next()).await?.ok_or("the watch ended")?.or_fail()?;
    held.release().await?;
    soon("the lease", waiting).await???.release().await?;
    store.list(&Query::new(LEASE)).await?;
    let short = tenure::store::Put::new(tenure::Key::new(LEASE, "jobs/y"), "{}");
    store.commit(short.ttl(Duration::from_secs(1))).await?;
    let ended = async {
        loop {
            let batch = watch.next().await.ok_or("the watch ended")?.or_fail()?;
            let gone = |event: &tenure::store::Event| matches!(event, tenure::store::Event::Delete { key, .. } if key.id == "jobs/y");
            if batch.events.iter().any(gone) {
                return Outcome::Ok(());
            }
        }
    };
    soon("the expiry", ended).await?
}

async fn manifest() -> Outcome {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/rbac.yaml");
    let manifest = std::fs::read_to_string(path).or_fail()?;
    let granted = listed(&manifest, "verbs").ok_or("no verbs")?;
    ensure_eq!(listed(&manifest, "apiGroups"), Some(BTreeSet::from(["coordination.k8s.io"])));
    ensure_eq!(listed(&manifest, "resources"), Some(BTreeSet::from(["leases"])));
    ensure_eq!(manifest.matches("\n    verbs:").count(), 1);
    for (idle, more) in [(None, None), (Some(Duration::ZERO), Some("delete"))] {
        let server = standin();
        everything(&server, idle).await?;
        let seen = server.take_seen();
        let place = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
        for request in &seen {
            ensure!(request.target.starts_with(&place), "{request:?}");
        }
        let used: BTreeSet<&str> = seen.iter().map(verb).collect();
        let expected: BTreeSet<&str> = granted.iter().copied().chain(more).collect();
        ensure_eq!(used, expected);
    }
    Ok(())
}

/// Somebody who waits would wait for news that never comes.
async fn unwatched() -> Outcome {
    let server = standin();
    let (one, two) = (open(&server).await?, open(&server).await?);
    let scope = scope("jobs/x")?;
    let held = coordinator(&one, "one")?.acquire(&scope, &terms(30)).await?;
    server.forbid("WATCH");
    let error = two.watch(&WatchRequest::kind(LEASE)).await.err();
    ensure_eq!(error.as_ref().map(Error::code), Some("refused"));
    let waiter = coordinator(&two, "two")?;
    let patient = terms(30).wait_forever();
    for _ in 0..2 {
        let error = soon("the refusal", waiter.acquire(&scope, &patient)).await?.err();
        ensure!(error.as_ref().is_some_and(|e| e.to_string().contains("rbac.yaml")), "{error:?}");
    }
    Ok(held.release().await?)
}

async fn nowhere() -> Outcome {
    let server = standin();
    let coordinator = coordinator(&open_with(options(&server).namespace("nowhere")).await?, "w")?;
    let waiting = coordinator.acquire(&scope("jobs/x")?, &terms(30)).await.err();
    ensure!(
        waiting.as_ref().is_some_and(|e| {
            e.code() == "refused" && e.to_string().contains("namespaces \"nowhere\" not found")
        }),
        "{waiting:?}"
    );
    Ok(())
}

async fn over_tls() -> Outcome {
    let server = ApiServer::start_with_tls().or_fail()?;
    let folder = tempfile::tempdir().or_fail()?;
    let path = folder.path().join("kubeconfig");
    let with = |text: String| std::fs::write(&path, text).or_fail();
    // The token, and whom to trust.
    open(&server).await?.list(&Query::new(LEASE)).await?;
    // A client certificate instead of a token.
    let user = server.certificate_user().ok_or("it speaks no TLS")?;
    with(server.kubeconfig_of(&user, NAMESPACE))?;
    let store = open_with(options(&server).kubeconfig(&path)).await?;
    coordinator(&store, "w")?.acquire(&scope("jobs/x")?, &terms(30)).await?.release().await?;
    // Neither of them.
    with(server.kubeconfig_of("token: wrong", NAMESPACE))?;
    let error = open_with(options(&server).kubeconfig(&path)).await.err();
    ensure!(error.as_ref().is_some_and(|e| e.to_string().contains("credentials")), "{error:?}");
    // A server that nobody vouches for gets no credentials.
    server.take_seen();
    let text = std::fs::read_to_string(server.kubeconfig()).or_fail()?;
    let unknown = text.lines().filter(|line| !line.contains("certificate-authority-data"));
    with(unknown.map(|line| format!("{line}\n")).collect())?;
    let error = open_with(options(&server).kubeconfig(&path)).await.err();
    ensure_eq!(error.as_ref().map(Error::code), Some("unavailable"));
    ensure_eq!(server.take_seen().len(), 0);
    Ok(())
}
