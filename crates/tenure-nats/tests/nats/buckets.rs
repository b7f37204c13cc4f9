//! Buckets that are there already: accepted, or refused with the setting, its value, what is wanted
//! and how to mend it.

use std::time::Duration;

use async_nats::jetstream::stream::{
    Config, DiscardPolicy, PersistenceMode, Republish, RetentionPolicy, Source, StorageType,
    SubjectTransform,
};
use async_nats::jetstream::{self, Context};
use tenure::Error;
use tenure::backend::Backend;
use tenure::store::Durability;
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_nats::{NatsStore, Options};

use crate::common::{OrFail, Outcome, Server, open, put};

type Spoil = fn(&mut Config);

/// Each unsafe setting, and what the refusal says of it.
const UNSAFE: [(&str, Spoil, &[&str]); 15] = [
    (
        "history",
        |c| c.max_messages_per_subject = 5,
        &["history) is 5, wanted is 1", "--max-msgs-per-subject=1"],
    ),
    (
        "max_age",
        |c| c.max_age = Duration::from_secs(3600),
        &["max_age is 3600s, wanted is 0", "--max-age=0"],
    ),
    (
        "discard_old",
        |c| c.discard = DiscardPolicy::Old,
        &["discard is Old, wanted is New", "--discard=new"],
    ),
    (
        "discard_per_subject",
        |c| c.discard_new_per_subject = true,
        &["discard_new_per_subject is true", "--no-discard-per-subject"],
    ),
    (
        "no_lives",
        |c| (c.allow_message_ttl, c.subject_delete_marker_ttl) = (false, None),
        &["allow_msg_ttl is false", "--allow-msg-ttl --subject-del-markers-ttl=2m"],
    ),
    (
        "no_markers",
        |c| c.subject_delete_marker_ttl = None,
        &["subject_delete_marker_ttl is unset", "--subject-del-markers-ttl=2m"],
    ),
    (
        "no_rollup",
        |c| (c.allow_rollup, c.subject_delete_marker_ttl) = (false, None),
        &["--subject-del-markers-ttl=2m --allow-rollup"],
    ),
    (
        "foreign_news",
        |c| {
            let (source, destination) = (c.subjects[0].clone(), "elsewhere.>".into());
            c.republish = Some(Republish { source, destination, headers_only: false });
        },
        &["republish is {", "wanted is none, or from $KV.", "--republish-source='$KV."],
    ),
    (
        "foreign_subjects",
        |c| c.subjects.push("elsewhere.>".into()),
        &["subjects is", "elsewhere", "--subjects="],
    ),
    ("no_answers", |c| c.no_ack = true, &["no_ack is true", "--ack"]),
    (
        "small_messages",
        |c| c.max_message_size = 1000,
        &["max_msg_size is 1000, wanted is -1", "--max-msg-size=-1"],
    ),
    (
        "read_once",
        |c| c.retention = RetentionPolicy::WorkQueue,
        &["retention is WorkQueue", "name another bucket"],
    ),
    (
        "transformed",
        |c| {
            let (source, destination) = (c.subjects[0].clone(), "other.>".into());
            c.subject_transform = Some(SubjectTransform { source, destination });
        },
        &["subject_transform is set", "name another bucket"],
    ),
    (
        "sourced",
        |c| c.sources = Some(vec![Source { name: "origin".into(), ..Source::default() }]),
        &["sources is set", "name another bucket"],
    ),
    (
        "asynchronous",
        |c| c.persist_mode = Some(PersistenceMode::Async),
        &["persist_mode is async", "acknowledged before they are stored"],
    ),
];

pub(crate) fn add(trials: &mut Trials, server: Server) {
    for (name, spoil, expected) in UNSAFE {
        trials.test(format!("buckets::refused_for_{name}"), move || {
            refused(server, name, spoil, expected)
        });
    }
    trials.test("buckets::refused_for_being_a_mirror", move || mirror(server));
    trials.test("buckets::refused_for_being_sealed", move || sealed(server));
    trials.test("buckets::refused_for_too_few_replicas", move || replicas(server));
    trials.test("buckets::refused_for_demanding_a_newer_program", move || newer(server));
    trials.test("buckets::a_safe_one_is_used_as_it_is", move || safe(server));
    trials.test("buckets::the_first_watch_has_it_tell_news", move || news(server));
    trials.test("buckets::made_once_by_many_at_once", move || many(server));
    trials.test("buckets::durability_is_declared_as_it_is", move || durability(server));
    trials.test("buckets::a_deleted_one_is_told", move || deleted(server));
    trials.test("buckets::foreign_values_are_told_apart", move || foreign(server));
}

async fn raw(server: Server) -> Result<Context, Failure> {
    let client = async_nats::connect(format!("127.0.0.1:{}", server.0.port(0))).await.or_fail()?;
    Ok(jetstream::new(client))
}

/// What we would make ourselves.
fn config(bucket: &str) -> Config {
    Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        allow_message_ttl: true,
        subject_delete_marker_ttl: Some(Duration::from_secs(60)),
        ..Config::default()
    }
}

async fn refusal(server: Server, bucket: &str, options: Options) -> Result<String, Failure> {
    match NatsStore::connect_with(&server.0.url_of(bucket), options).await {
        Err(Error::Refused { backend: "nats", reason }) => Ok(reason),
        other => Err(Failure::new(format!("bucket {bucket} was met with {other:?}"))),
    }
}

async fn refused(server: Server, name: &str, spoil: fn(&mut Config), expected: &[&str]) -> Outcome {
    let bucket = format!("unsafe-{name}");
    let mut config = config(&bucket);
    spoil(&mut config);
    raw(server).await?.create_stream(config).await.or_fail()?;
    let reason = refusal(server, &bucket, Options::new()).await?;
    for expected in expected.iter().chain(&["is unsafe: ", "because", bucket.as_str()]) {
        ensure!(reason.contains(expected), "{expected:?} is not in: {reason}");
    }
    Ok(())
}

async fn mirror(server: Server) -> Outcome {
    let raw = raw(server).await?;
    let origin = Config { name: "origin-of-mirror".into(), ..Config::default() };
    raw.create_stream(origin).await.or_fail()?;
    let mirror = Config {
        name: "KV_unsafe-mirror".into(),
        mirror: Some(Source { name: "origin-of-mirror".into(), ..Source::default() }),
        ..Config::default()
    };
    raw.create_stream(mirror).await.or_fail()?;
    let reason = refusal(server, "unsafe-mirror", Options::new()).await?;
    ensure!(reason.contains("mirror is set") && reason.contains("name another"), "{reason}");
    Ok(())
}

async fn sealed(server: Server) -> Outcome {
    let raw = raw(server).await?;
    let config = config("unsafe-sealed");
    raw.create_stream(config.clone()).await.or_fail()?;
    raw.update_stream(Config { sealed: true, ..config }).await.or_fail()?;
    let reason = refusal(server, "unsafe-sealed", Options::new()).await?;
    ensure!(reason.contains("sealed is true, wanted is false"), "{reason}");
    Ok(())
}

async fn replicas(server: Server) -> Outcome {
    raw(server).await?.create_stream(config("unsafe-replicas")).await.or_fail()?;
    let reason = refusal(server, "unsafe-replicas", Options::new().replicas(3)).await?;
    ensure!(reason.contains("replicas is 1, wanted is 3"), "{reason}");
    ensure!(reason.contains("nats stream edit KV_unsafe-replicas --replicas=3"), "{reason}");
    Ok(())
}

async fn newer(server: Server) -> Outcome {
    let metadata = [("tenure-min-writer".to_owned(), "99".to_owned())].into();
    let config = Config { metadata, ..config("of-tomorrow") };
    raw(server).await?.create_stream(config).await.or_fail()?;
    let reason = refusal(server, "of-tomorrow", Options::new()).await?;
    ensure!(reason.contains("level 99") && reason.contains("upgrade"), "{reason}");
    Ok(())
}

async fn safe(server: Server) -> Outcome {
    let mut raw = raw(server).await?;
    raw.set_timeout(Duration::from_secs(5));
    // Names and limits of the operator's own are nobody's business.
    let own = Config { description: Some("ours".into()), max_bytes: 1 << 20, ..config("safe") };
    raw.create_stream(own).await.or_fail()?;
    let store = open(&server.0.url_of("safe")).await?;
    store.commit(put("a", "x")).await?;
    let stream = raw.get_stream("KV_safe").await.or_fail()?;
    ensure_eq!(stream.cached_info().config.description.as_deref(), Some("ours"));
    // What does not fit is refused, and nothing is dropped to make room.
    let large = "x".repeat(400_000);
    store.commit(put("b", &large)).await?;
    store.commit(put("c", &large)).await?;
    let full = store.commit(put("d", &large)).await;
    ensure!(matches!(full, Err(Error::Full { .. })), "{full:?}");
    for id in ["a", "b", "c"] {
        ensure!(store.get(&crate::common::key(id)).await?.is_some(), "{id} was dropped");
    }
    Ok(())
}

async fn news(server: Server) -> Outcome {
    let raw = raw(server).await?;
    let own = Config { description: Some("ours".into()), ..config("told") };
    raw.create_stream(own).await.or_fail()?;
    let store = open(&server.0.url_of("told")).await?;
    store.commit(put("a", "x")).await?;
    let before = raw.get_stream("KV_told").await.or_fail()?.cached_info().config.clone();
    ensure!(before.republish.is_none(), "nobody watches, and the bucket tells");
    store.watch(&tenure::store::WatchRequest::default()).await?;
    let after = raw.get_stream("KV_told").await.or_fail()?.cached_info().config.clone();
    ensure_eq!(after.republish.as_ref().map(|r| r.destination.as_str()), Some("$TENURE.told.>"));
    ensure_eq!(Config { republish: None, ..after }, before, "everything else stays as it was");
    // The next one finds it so.
    open(&server.0.url_of("told")).await?.watch(&tenure::store::WatchRequest::default()).await?;
    Ok(())
}

async fn many(server: Server) -> Outcome {
    let url = server.fresh_bucket();
    let stores = futures::future::try_join_all((0..8).map(|_| open(&url))).await?;
    for (n, store) in stores.iter().enumerate() {
        store.commit(put(n.to_string(), "x")).await?;
    }
    Ok(())
}

async fn durability(server: Server) -> Outcome {
    let url = server.fresh_bucket();
    let declared = async |url: &str| -> Result<Durability, Failure> {
        Ok(NatsStore::connect(url).await?.capabilities().durability)
    };
    ensure_eq!(declared(&url).await?, Durability::Server);
    ensure_eq!(NatsStore::connect(&url).await?.capabilities().replicas, Some(1));
    let asked = format!("{url}?monitor={}", server.0.monitor(0));
    ensure_eq!(declared(&asked).await?, Durability::Flushed, "read from a server that flushes");
    let stated = declared(&format!("{url}?sync=90s")).await?;
    ensure_eq!(stated, Durability::Periodic(Duration::from_secs(90)));
    let bucket = "in-memory";
    let config = Config { storage: StorageType::Memory, ..config(bucket) };
    raw(server).await?.create_stream(config).await.or_fail()?;
    ensure_eq!(declared(&server.0.url_of(bucket)).await?, Durability::Volatile);
    let settings = tenure_testkit::NatsSettings { sync: None, ..Default::default() };
    let lazy = tenure_testkit::Nats::start_with(settings).or_fail()?;
    let asked = format!("{}?monitor={}", lazy.fresh_bucket(), lazy.monitor(0));
    let default = Durability::Periodic(Duration::from_secs(120));
    ensure_eq!(declared(&asked).await?, default, "read from a server with default settings");
    Ok(())
}

async fn deleted(server: Server) -> Outcome {
    let store = open(&server.0.url_of("to-be-deleted")).await?;
    store.commit(put("a", "x")).await?;
    raw(server).await?.delete_stream("KV_to-be-deleted").await.or_fail()?;
    let told = store.commit(put("b", "x").expect(tenure::store::Expect::Absent)).await;
    ensure!(matches!(told, Err(Error::Unavailable { .. })), "{told:?}");
    Ok(())
}

async fn foreign(server: Server) -> Outcome {
    let store = open(&server.0.url_of("shared")).await?;
    let bucket = raw(server).await?.get_key_value("shared").await.or_fail()?;
    bucket.put("thing.x", "somebody's value".into()).await.or_fail()?;
    bucket.put("not-ours", "somebody's value".into()).await.or_fail()?;
    let told = store.get(&crate::common::key("x")).await;
    ensure!(
        matches!(&told, Err(Error::Corrupt { reason, .. }) if reason.contains("thing/x")),
        "{told:?}"
    );
    // Ours are readable by anybody, and what we delete is deleted to everybody.
    store.commit(put("y", "x")).await?;
    ensure!(bucket.entry("thing.y").await.or_fail()?.is_some());
    store.delete(&crate::common::key("y")).await?;
    ensure!(bucket.get("thing.y").await.or_fail()?.is_none());
    Ok(())
}
