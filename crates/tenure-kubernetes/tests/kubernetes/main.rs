//! The conformance suite on Leases, and what is Kubernetes' own.
//!
//! All of it runs on a stand-in API server. What needs no faults of the server also runs on a real
//! cluster, if `TENURE_TEST_KUBECONFIG` names a kubeconfig whose current context may be written to.

mod cluster;
mod common;
mod elector;
mod faults;
mod pod;
mod processes;
mod rights;
mod visible;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cluster::LeftTidy;
use common::{connect, open_with, options, real_cluster, real_kubeconfig, standin, url};
use tenure::clock::ManualClock;
use tenure_conformance::{Subject, harness};

fn main() {
    let mut args = std::env::args().skip(1);
    let role = args.next().unwrap_or_default();
    if let Some(run) =
        [(processes::CONTEND, processes::contend as fn(&str)), (pod::POD, pod::inside)]
            .into_iter()
            .find_map(|(name, run)| (name == role).then_some(run))
    {
        run(&args.next().unwrap_or_default());
        return;
    }
    harness::main(
        |url| Box::pin(async move { connect(&url).await }),
        |trials| {
            // Shared by all that do not break it. Whoever runs last drops it, and its folder goes with it.
            let server = Arc::new(standin());
            let suite = Arc::clone(&server);
            trials.suite_fresh("kubernetes", move || in_a_namespace_of_its_own(&suite));
            trials.suite_with("kubernetes_by_hand", by_hand(server));
            if let Some(url) = real_cluster() {
                trials.suite("cluster", url);
                trials.keep(real_kubeconfig().map(LeftTidy));
            }
            visible::add(trials);
            elector::add(trials);
            faults::add(trials);
            rights::add(trials);
            pod::add(trials);
            processes::add(trials, real_cluster());
        },
    )
}

/// Idle Leases stay, and every list shows them; no trial has to look at what others left.
fn in_a_namespace_of_its_own(server: &tenure_testkit::ApiServer) -> Subject {
    static TRIALS: AtomicU32 = AtomicU32::new(0);
    let namespace = format!("suite-{}", TRIALS.fetch_add(1, Ordering::Relaxed));
    server.create_namespace(&namespace);
    let url = url(&server.kubeconfig(), &namespace);
    harness::subject(|url| Box::pin(async move { connect(&url).await }), url)
}

/// The same store on a clock that moves when told.
fn by_hand(server: Arc<tenure_testkit::ApiServer>) -> Subject {
    server.create_namespace("by-hand");
    let clock = ManualClock::new();
    let shared = Arc::new(clock.clone());
    let open = move || -> futures::future::BoxFuture<'static, tenure::Result<_>> {
        let options = options(&server).namespace("by-hand").clock(shared.clone());
        Box::pin(open_with(options))
    };
    Subject { open: Arc::new(open), worker: None, clock: Some(clock) }
}
