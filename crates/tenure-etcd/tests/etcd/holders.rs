//! Holders of leases on three nodes of which the leader is killed, frozen and cut off, besides all
//! else that may happen to them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tenure_conformance::Failure;
use tenure_conformance::harness::{self, Trials};
use tenure_conformance::holders::{self, Ordeal, Outage};
use tenure_testkit::Etcd;
use tokio::sync::Mutex;

use crate::common::{OrFail, Outcome, Server, connect};

/// Longer than an election, and longer than the leases of [`holders`] live.
const LONG: Duration = Duration::from_millis(3500);

pub(crate) fn add(trials: &mut Trials, server: Server) {
    holders::add_slots(trials, "etcd", server.fresh());
    holders::add_gates(trials, "etcd", server.fresh());
    trials.test("etcd::holders_of_a_scope_endure_outages_of_a_cluster", outages);
}

async fn outages() -> Outcome {
    let cluster = Etcd::start_cluster(3).or_fail()?;
    let url = cluster.url("holders");
    let subject = harness::subject(|url| Box::pin(async move { connect(&url).await }), url);
    let cluster = Arc::new(Mutex::new(cluster));
    let outages = vec![
        outage(&cluster, "a killed leader", |cluster, leader| {
            cluster.kill(leader)?;
            std::thread::sleep(LONG);
            cluster.start_again(leader)
        }),
        outage(&cluster, "a leader cut off", |cluster, leader| {
            cluster.cut_off(leader)?;
            std::thread::sleep(LONG);
            cluster.heal();
            Ok(())
        }),
        outage(&cluster, "a frozen leader", |cluster, leader| {
            cluster.pause(leader)?;
            std::thread::sleep(LONG);
            cluster.resume(leader)
        }),
        outage(&cluster, "a follower cut off", |cluster, leader| {
            cluster.cut_off((leader + 1) % cluster.len())?;
            std::thread::sleep(LONG);
            cluster.heal();
            Ok(())
        }),
    ];
    let ordeal = Ordeal { outages, ..Ordeal::on_a_scope(harness::rounds(9, 18), 5) };
    let account = holders::run(&subject, &ordeal).await?;
    eprintln!("holders of a scope, and outages of a cluster: {account}");
    Ok(())
}

/// Something that happens to this cluster and its leader. It blocks, so it happens on a thread of its
/// own.
fn outage(
    cluster: &Arc<Mutex<Etcd>>,
    name: &'static str,
    happen: fn(&mut Etcd, usize) -> anyhow::Result<()>,
) -> Outage {
    let cluster = Arc::clone(cluster);
    let happen = move || -> BoxFuture<'static, Result<(), Failure>> {
        let cluster = Arc::clone(&cluster);
        Box::pin(async move {
            let happening = tokio::task::spawn_blocking(move || {
                let mut cluster = cluster.blocking_lock();
                let leader = cluster.find_leader()?;
                happen(&mut cluster, leader)
            });
            happening.await?.or_fail()
        })
    };
    Outage { name, happen: Arc::new(happen) }
}
