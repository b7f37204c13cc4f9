//! Holders of leases whose server crashes, restarts and freezes, besides all else that may happen to
//! them. There are no fenced commits here, so it is tenures that are judged: none overlap, and tokens
//! rise.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tenure_conformance::Failure;
use tenure_conformance::harness::{self, Trials};
use tenure_conformance::holders::{self, Ordeal, Outage};
use tenure_testkit::Nats;
use tokio::sync::Mutex;

use crate::common::{OrFail, Outcome, open};

/// The server freezes for longer than the leases of [`holders`] live, and for less.
const LONG: Duration = Duration::from_millis(1700);
const SHORT: Duration = Duration::from_millis(300);

pub(crate) fn add(trials: &mut Trials) {
    trials.test("nats::holders_of_a_scope_endure_outages", outages);
}

async fn outages() -> Outcome {
    let server = Nats::start().or_fail()?;
    let url = server.fresh_bucket();
    let subject = harness::subject(|url| Box::pin(async move { open(&url).await }), url);
    let server = Arc::new(Mutex::new(server));
    let outages = vec![
        outage(&server, "a crash of the server", |server| {
            server.kill(0)?;
            server.start_again(0)
        }),
        outage(&server, "a restart of the server", |server| {
            server.stop(0)?;
            server.start_again(0)
        }),
        outage(&server, "a server frozen for long", |server| frozen(server, LONG)),
        outage(&server, "a server frozen briefly", |server| frozen(server, SHORT)),
    ];
    let ordeal = Ordeal { outages, ..Ordeal::on_a_scope(harness::rounds(9, 18), 3) };
    let account = holders::run(&subject, &ordeal).await?;
    eprintln!("holders of a scope, and outages: {account}");
    Ok(())
}

/// Something that happens to this server. It blocks, so it happens on a thread of its own.
fn outage(
    server: &Arc<Mutex<Nats>>,
    name: &'static str,
    happen: fn(&mut Nats) -> anyhow::Result<()>,
) -> Outage {
    let server = Arc::clone(server);
    let happen = move || -> BoxFuture<'static, Result<(), Failure>> {
        let server = Arc::clone(&server);
        Box::pin(async move {
            let happening =
                tokio::task::spawn_blocking(move || happen(&mut server.blocking_lock()));
            happening.await?.or_fail()
        })
    };
    Outage { name, happen: Arc::new(happen) }
}

fn frozen(server: &mut Nats, time: Duration) -> anyhow::Result<()> {
    server.pause(0)?;
    std::thread::sleep(time);
    server.resume(0)
}
