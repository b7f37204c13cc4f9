//! Limits: what is at the limit is taken, what is over it is refused by name, with nothing written.

use std::time::Duration;

use tenure::store::{Commit, Expect, Put, Query, Requirement, Selector, Touch, WatchRequest};
use tenure::{Error, Key, Labels, Limits};

use crate::context::Context;
use crate::helpers::{existing, put, refused};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(a_payload_at_the_limit_is_kept, [], "and one byte more is refused by name"),
        behaviour!(ids_and_kinds_at_the_limit_are_kept, [], "counted in bytes, not in characters"),
        behaviour!(names_at_the_limit_are_kept, [names], "and one byte more is refused by name"),
        behaviour!(
            labels_at_the_limit_are_kept,
            [],
            "their number, and the bytes of keys and values"
        ),
        behaviour!(a_commit_at_the_limit_applies, [multi], "so many operations, and not one more"),
        behaviour!(
            a_commit_of_many_bytes_applies_up_to_the_limit,
            [multi],
            "payloads of one commit, added up"
        ),
        behaviour!(
            lives_and_touches_have_limits,
            [ttl],
            "the longest life, the shortest, and touches in one request"
        ),
        behaviour!(
            malformed_text_is_refused,
            [],
            "empty, with control characters, or with '/' in a kind; nothing is written"
        ),
        behaviour!(
            malformed_questions_are_refused,
            [],
            "what no object can have is not asked for: a list or a watch says what is wrong"
        ),
    ]
}

/// Larger than this is not tried: the suite also runs on a user's store.
const LARGEST: usize = 8 * 1024 * 1024;

fn over(error: &Error, limit: &str, max: usize) -> Result<(), Failure> {
    match error {
        Error::LimitExceeded { limit: named, max: told, got } => {
            ensure_eq!((*named, *told), (limit, max as u64));
            ensure!(*got > *told);
            Ok(())
        }
        other => Err(Failure::new(format!("not the limit {limit}: {other}"))),
    }
}

async fn refuse(ctx: &Context, write: Put, limit: &str, max: usize) -> Result<(), Failure> {
    let key = write.key.clone();
    over(&refused(ctx.store().commit(write).await)?, limit, max)?;
    if key.kind.len() <= ctx.caps().limits.kind_bytes && key.id.len() <= ctx.caps().limits.id_bytes
    {
        ensure_eq!(ctx.store().get(&key).await?, None, "what a refused put left");
    }
    Ok(())
}

/// Text of exactly so many bytes, mostly of two bytes a character.
fn long(bytes: usize) -> String {
    let mut text = "é".repeat(bytes / 2);
    text.extend((bytes % 2 == 1).then_some('x'));
    text
}

async fn a_payload_at_the_limit_is_kept(ctx: Context) -> Result<(), Failure> {
    let max = ctx.caps().limits.payload_bytes;
    if max > LARGEST {
        return Ok(());
    }
    let payload: Vec<u8> = (0..max).map(|n| (n % 251) as u8).collect();
    let key = ctx.key("large");
    put(ctx.store(), Put::new(key.clone(), payload.clone())).await?;
    let read = existing(ctx.store(), &key).await?.payload;
    ensure!(read == payload, "{} bytes came back changed", read.len());
    refuse(&ctx, Put::new(ctx.key("larger"), vec![0; max + 1]), "payload_bytes", max).await
}

async fn ids_and_kinds_at_the_limit_are_kept(ctx: Context) -> Result<(), Failure> {
    let limits = ctx.caps().limits.clone();
    let long_kind = {
        let base = ctx.kind("");
        ctx.kind(&"k".repeat(limits.kind_bytes.saturating_sub(base.len())))
    };
    let key = Key::new(&long_kind, long(limits.id_bytes));
    ensure_eq!((key.kind.len(), key.id.len()), (limits.kind_bytes, limits.id_bytes));
    put(ctx.store(), Put::new(key.clone(), "v")).await?;
    ensure_eq!(existing(ctx.store(), &key).await?.key, key);
    let listed = ctx.store().list_all(&Query::new(&key.kind).prefix(&key.id)).await?;
    ensure_eq!(listed.len(), 1);
    let id = Put::new(ctx.key(&long(limits.id_bytes + 1)), "v");
    refuse(&ctx, id, "id_bytes", limits.id_bytes).await?;
    let kind = Put::new(Key::new(format!("{long_kind}k"), "x"), "v");
    refuse(&ctx, kind, "kind_bytes", limits.kind_bytes).await
}

async fn names_at_the_limit_are_kept(ctx: Context) -> Result<(), Failure> {
    let max = ctx.caps().limits.name_bytes;
    let key = ctx.key("one");
    put(ctx.store(), Put::new(key.clone(), "v").name(long(max))).await?;
    let found = ctx.store().get_by_name(&key.kind, &long(max)).await?;
    ensure_eq!(found.map(|object| object.key), Some(key));
    let longer = Put::new(ctx.key("two"), "v").name(long(max + 1));
    refuse(&ctx, longer, "name_bytes", max).await
}

async fn labels_at_the_limit_are_kept(ctx: Context) -> Result<(), Failure> {
    let limits = ctx.caps().limits.clone();
    let key = ctx.key("one");
    let labels = |count: usize| -> Labels {
        (0..count).map(|n| (format!("key-{n}"), format!("value-{n}"))).collect()
    };
    put(ctx.store(), Put::new(key.clone(), "v").labels(labels(limits.labels))).await?;
    ensure_eq!(existing(ctx.store(), &key).await?.labels.len(), limits.labels);
    let many = Put::new(ctx.key("many"), "v").labels(labels(limits.labels + 1));
    refuse(&ctx, many, "labels", limits.labels).await?;
    let (fits, long_text) = (long(limits.label_bytes), long(limits.label_bytes + 1));
    let write = Put::new(key.clone(), "v").label(&fits, &fits);
    put(ctx.store(), write.clone()).await?;
    ensure_eq!(existing(ctx.store(), &key).await?.labels, write.labels);
    for bad in [
        Put::new(ctx.key("key"), "v").label(&long_text, "v"),
        Put::new(ctx.key("value"), "v").label("k", &long_text),
    ] {
        refuse(&ctx, bad, "label_bytes", limits.label_bytes).await?;
    }
    Ok(())
}

async fn a_commit_at_the_limit_applies(ctx: Context) -> Result<(), Failure> {
    let max = ctx.caps().limits.commit_operations.min(2000);
    let commit = |operations: usize| {
        let checked = Commit::new().check(ctx.other_key("none"), Expect::Absent);
        (1..operations)
            .fold(checked, |commit, n| commit.put(Put::new(ctx.key(&n.to_string()), "v")))
    };
    if max == ctx.caps().limits.commit_operations {
        let error = refused(ctx.store().commit(commit(max + 1)).await)?;
        over(&error, "commit_operations", max)?;
        let left = ctx.store().list(&Query::new(ctx.kind("a"))).await?;
        ensure_eq!(left.objects.len(), 0, "objects left by a refused commit");
    }
    let done = ctx.store().commit(commit(max)).await?;
    ensure_eq!(done.writes.len(), max - 1);
    ensure_eq!(ctx.store().list_all(&Query::new(ctx.kind("a"))).await?.len(), max - 1);
    Ok(())
}

async fn a_commit_of_many_bytes_applies_up_to_the_limit(ctx: Context) -> Result<(), Failure> {
    let limits = ctx.caps().limits.clone();
    let puts = limits.commit_bytes.div_ceil(limits.payload_bytes.max(1));
    if limits.commit_bytes > LARGEST || puts + 1 > limits.commit_operations {
        return Ok(());
    }
    let commit = |bytes: usize| {
        let mut commit = Commit::new();
        let mut left = bytes;
        for n in 0.. {
            let size = left.min(limits.payload_bytes);
            commit = commit.put(Put::new(ctx.key(&n.to_string()), vec![7; size]));
            left -= size;
            if left == 0 {
                break;
            }
        }
        commit
    };
    let error = refused(ctx.store().commit(commit(limits.commit_bytes + 1)).await)?;
    over(&error, "commit_bytes", limits.commit_bytes)?;
    ctx.store().commit(commit(limits.commit_bytes)).await?;
    let last = existing(ctx.store(), &ctx.key(&(puts - 1).to_string())).await?;
    ensure!(!last.payload.is_empty());
    Ok(())
}

async fn lives_and_touches_have_limits(ctx: Context) -> Result<(), Failure> {
    let limits = ctx.caps().limits.clone();
    let key = ctx.key("one");
    let done = put(ctx.store(), Put::new(key.clone(), "v").ttl(limits.ttl_max)).await?;
    ensure!(done.ttl.is_some_and(|granted| granted >= limits.ttl_max));
    let second = Duration::from_secs(1);
    let longer = Put::new(ctx.key("two"), "v").ttl(limits.ttl_max + second);
    let error = refused(ctx.store().commit(longer).await)?;
    ensure!(
        matches!(error, Error::LimitExceeded { limit, .. } if limit.contains("ttl_max")),
        "{error}"
    );
    let none = Put::new(ctx.key("two"), "v").ttl(Duration::ZERO);
    ensure_eq!(refused(ctx.store().commit(none).await)?.code(), "invalid");
    ensure_eq!(ctx.store().get(&ctx.key("two")).await?, None);
    let touch = Touch { key, revision: done.revision, ttl: limits.ttl_max + second };
    let error = refused(ctx.store().touch(vec![touch.clone()]).await)?;
    ensure_eq!(error.code(), "limit_exceeded", "a touch with too long a life");
    if limits.touches <= 100_000 {
        let touches = vec![Touch { ttl: second, ..touch }; limits.touches + 1];
        over(&refused(ctx.store().touch(touches).await)?, "touches", limits.touches)?;
    }
    Ok(())
}

async fn malformed_text_is_refused(ctx: Context) -> Result<(), Failure> {
    let kind = ctx.kind("a");
    let good = Put::new(Key::new(&kind, "x"), "v");
    let mut bad = vec![
        Put::new(Key::new(&kind, ""), "v"),
        Put::new(Key::new("", "x"), "v"),
        Put::new(Key::new(format!("{kind}/x"), "x"), "v"),
        Put::new(Key::new(format!("{kind}\n"), "x"), "v"),
        Put::new(Key::new(&kind, "a\0b"), "v"),
        Put::new(Key::new(&kind, "tab\t"), "v"),
        Put::new(Key::new(&kind, "\u{7f}"), "v"),
        Put::new(Key::new(&kind, "\u{85}"), "v"),
        good.clone().label("", "v"),
        good.clone().label("a\0", "v"),
        good.clone().label("k", "line\nbreak"),
    ];
    if ctx.caps().names {
        bad.extend([good.clone().name(""), good.clone().name("a\0b"), good.name("\r")]);
    }
    for write in bad {
        let error = refused(ctx.store().commit(write.clone()).await)?;
        ensure_eq!(error.code(), "invalid", "{write:?}");
    }
    let error = refused(ctx.store().get(&Key::new(&kind, "a\0b")).await)?;
    ensure_eq!(error.code(), "invalid", "a read of a malformed id");
    let left = ctx.store().list(&Query::new(&kind)).await?;
    ensure_eq!(left.objects.len(), 0, "objects left by refused puts");
    Ok(())
}

async fn malformed_questions_are_refused(ctx: Context) -> Result<(), Failure> {
    let kind = ctx.kind("a");
    let limits = ctx.caps().limits.clone();
    let ask = || Query::new(&kind);
    let long = |bytes: usize| "x".repeat(bytes + 8);
    let mut bad = vec![
        (Query::new(""), "kind"),
        (Query::new(format!("{kind}/x")), "kind"),
        (Query::new("a\0b"), "kind"),
        (ask().prefix("a\0b"), "prefix"),
        (ask().prefix("line\n"), "prefix"),
        (ask().prefix(long(limits.id_bytes)), "id_bytes"),
        (ask().from("a\0b"), "from"),
        (ask().from(long(limits.id_bytes)), "id_bytes"),
        (ask().until("a\0b"), "until"),
        (ask().until(long(limits.id_bytes)), "id_bytes"),
        (ask().after("a\0b"), "after"),
        (ask().after(long(limits.id_bytes)), "id_bytes"),
    ];
    if ctx.caps().names {
        bad.extend([
            (ask().name(""), "name"),
            (ask().name("a\0b"), "name"),
            (ask().name(long(limits.name_bytes)), "name_bytes"),
        ]);
    }
    if ctx.caps().labels {
        let exists = |key: &str| Selector(vec![Requirement::Exists(key.to_owned())]);
        let many = vec![Requirement::Exists("k".to_owned()); limits.labels + 1];
        let one_of = |values: usize| {
            let half = vec!["v".to_owned(); values / 2];
            let rest = vec!["v".to_owned(); values - half.len()];
            let key = || "k".to_owned();
            Selector(vec![Requirement::In(key(), half), Requirement::NotIn(key(), rest)])
        };
        ctx.store().list(&ask().selector(one_of(Limits::SELECTOR_VALUES))).await?;
        bad.extend([
            (ask().selector(Selector::equals("a\0b", "v")), "label key"),
            (ask().selector(Selector::equals("k", "a\0b")), "label value"),
            (ask().selector(exists("")), "label key"),
            (ask().selector(exists(&long(limits.label_bytes))), "label_bytes"),
            (ask().selector(Selector(many)), "labels"),
            (ask().selector(one_of(Limits::SELECTOR_VALUES + 1)), "selector_values"),
        ]);
    }
    for (query, named) in bad {
        says(refused(ctx.store().list(&query).await)?, named, &query)?;
    }
    let watches = [
        (WatchRequest::kind(""), "kind"),
        (WatchRequest::kind("a\0b"), "kind"),
        (WatchRequest::kind(format!("{kind}/x")), "kind"),
        (WatchRequest::kind(&kind).prefix("a\0b"), "prefix"),
        (WatchRequest::kind(&kind).prefix(long(limits.id_bytes)), "id_bytes"),
    ];
    for (request, named) in watches {
        says(refused(ctx.store().watch(&request).await)?, named, &request)?;
    }
    Ok(())
}

/// Whether an error blames the caller, and names what is wrong.
fn says(error: Error, named: &str, of: &dyn std::fmt::Debug) -> Result<(), Failure> {
    ensure!(matches!(error.code(), "invalid" | "limit_exceeded"), "{of:?}: {error}");
    ensure!(error.to_string().contains(named), "{of:?}: {error}");
    Ok(())
}
