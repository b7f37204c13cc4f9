//! The conformance suite on Leases, and what is Kubernetes' own.
//!
//! All of it runs on a stand-in API server. What needs no faults of the server also runs on a real
//! cluster, if `TENURE_TEST_KUBECONFIG` names a kubeconfig whose current context may be written to.

mod cluster;
mod common;
mod elector;
mod faults;
mod processes;
mod rights;
mod visible;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{connect, open_with, options, real_cluster, shared, url};
use tenure::clock::ManualClock;
use tenure_conformance::{Subject, harness};

fn main() {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(processes::CONTEND) {
        processes::contend(&args.next().unwrap_or_default());
        return;
    }
    harness::main(
        |url| Box::pin(async move { connect(&url).await }),
        |trials| {
            let server = shared();
            trials.suite_fresh("kubernetes", move || in_a_namespace_of_its_own(server));
            trials.suite_with("kubernetes_by_hand", by_hand(server));
            if let Some(url) = real_cluster() {
                trials.suite("cluster", url);
            }
            visible::add(trials);
            elector::add(trials);
            faults::add(trials);
            rights::add(trials);
            processes::add(trials, real_cluster());
        },
    )
}

/// Idle Leases stay, and every list shows them; no trial has to look at what others left.
fn in_a_namespace_of_its_own(server: &tenure_testkit::ApiServer) -> Subject {
    static TRIALS: AtomicU32 = AtomicU32::new(0);
    let namespace = format!("suite-{}", TRIALS.fetch_add(1, Ordering::Relaxed));
    let url = url(&server.kubeconfig(), &namespace);
    harness::subject(|url| Box::pin(async move { connect(&url).await }), url)
}

/// The same store on a clock that moves when told.
fn by_hand(server: &'static tenure_testkit::ApiServer) -> Subject {
    let clock = ManualClock::new();
    let shared = Arc::new(clock.clone());
    let open = move || -> futures::future::BoxFuture<'static, tenure::Result<_>> {
        let options = options(server).namespace("by-hand").clock(shared.clone());
        Box::pin(open_with(options))
    };
    Subject { open: Arc::new(open), worker: None, clock: Some(clock) }
}
