//! Leases on NATS: cycles of acquiring and releasing, beside the raw client doing the same work.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context, stream};
use tenure_nats::NatsStore;
use tenure_testkit::{Nats, NatsSettings};

use crate::leases::cycle_rate;
use crate::measure::{Plan, heading, human, median, rate};
use crate::spent::Spent;

const TTL: &str = "30";
/// What a lease of these holds.
const VALUE: &[u8] = &[b'x'; 140];

pub(crate) async fn run(plan: Plan) -> anyhow::Result<()> {
    heading(
        "Acquire and release on NATS: cycles a second",
        &[
            "server",
            "clients",
            "Tenure",
            "raw client: publish with sequence and life",
            "ratio",
            "CPU time per cycle: Tenure",
            "raw client",
        ],
    );
    for (name, sync) in [("flushes every write", Some("always")), ("default settings", None)] {
        let server = Nats::start_with(NatsSettings { sync, ..NatsSettings::default() })?;
        let store = NatsStore::connect(&server.fresh_bucket()).await?.into_store();
        let raw = Arc::new(raw(&server).await?);
        for clients in [1, 64] {
            let mut figures: [Vec<f64>; 5] = Default::default();
            for run in 0..plan.runs {
                let tag = format!("{clients}-{run}");
                let ours = || costed(plan, cycle_rate(&store, clients, plan.time, &tag));
                let theirs = || costed(plan, raw_rate(&raw, clients, plan.time, &tag));
                // In turn, each first every other time: what the server has to carry grows with time.
                let (ours, theirs) = if run % 2 == 0 {
                    let ours = ours().await?;
                    (ours, theirs().await?)
                } else {
                    let theirs = theirs().await?;
                    (ours().await?, theirs)
                };
                let all = [ours.0, theirs.0, ours.0 / theirs.0, ours.1, theirs.1];
                for (figures, figure) in figures.iter_mut().zip(all) {
                    figures.push(figure);
                }
            }
            let [ours, theirs, ratio, our_cost, their_cost] = figures.map(median);
            println!(
                "| {name} | {clients} | {} | {} | {ratio:.2}× | {our_cost:.1} µs | {their_cost:.1} µs |",
                human(ours),
                human(theirs),
            );
        }
        store.close().await;
    }
    Ok(())
}

/// A rate, and the CPU time of this process for each of what it counts.
async fn costed(
    plan: Plan,
    rate: impl Future<Output = anyhow::Result<f64>>,
) -> anyhow::Result<(f64, f64)> {
    let before = Spent::until_now(None)?;
    let rate = rate.await?;
    let spent = Spent::until_now(None)?.since(before).per(rate * plan.time.as_secs_f64());
    Ok((rate, spent.clients))
}

/// A plain bucket with a life for each key, as somebody would make it by hand.
async fn raw(server: &Nats) -> anyhow::Result<Context> {
    let client = async_nats::connect(format!("127.0.0.1:{}", server.port(0))).await?;
    let context = jetstream::new(client);
    let bucket = stream::Config {
        name: "KV_raw".into(),
        subjects: vec!["$KV.raw.>".into()],
        max_messages_per_subject: 1,
        discard: stream::DiscardPolicy::New,
        allow_rollup: true,
        allow_message_ttl: true,
        subject_delete_marker_ttl: Some(Duration::from_secs(120)),
        ..stream::Config::default()
    };
    context.create_stream(bucket).await?;
    Ok(context)
}

/// Creates over the marker that the cycle before left, and deletes what was created. Each names the
/// sequence that it replaces, so neither reads.
async fn raw_rate(
    raw: &Arc<Context>,
    clients: usize,
    time: Duration,
    tag: &str,
) -> anyhow::Result<f64> {
    let last: Arc<Vec<_>> =
        Arc::new((0..clients).map(|_| std::sync::atomic::AtomicU64::new(0)).collect());
    let (raw, tag) = (Arc::clone(raw), tag.to_owned());
    rate(clients, time, move |client, _| {
        use std::sync::atomic::Ordering::Relaxed;
        let (raw, last) = (Arc::clone(&raw), Arc::clone(&last));
        let subject = format!("$KV.raw.lease.bench/{tag}-{client}");
        async move {
            let mut create = HeaderMap::new();
            create.insert(
                "Nats-Expected-Last-Subject-Sequence",
                last[client].load(Relaxed).to_string(),
            );
            create.insert("Nats-TTL", TTL);
            let value = bytes::Bytes::from_static(VALUE);
            let created = raw.publish_with_headers(subject.clone(), create, value).await?.await?;
            let mut delete = HeaderMap::new();
            delete.insert("Nats-Expected-Last-Subject-Sequence", created.sequence.to_string());
            delete.insert("KV-Operation", "PURGE");
            delete.insert("Nats-TTL", "120");
            let empty = bytes::Bytes::new();
            let deleted = raw.publish_with_headers(subject, delete, empty).await?.await?;
            last[client].store(deleted.sequence, Relaxed);
            Ok(())
        }
    })
    .await
}
