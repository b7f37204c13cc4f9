//! Lists: bytewise order, ranges, and pages that stay whole while others write.

use std::collections::BTreeMap;

use tenure::Object;
use tenure::store::{Batch, Event, Page, Put, Query, Watch, WatchRequest};
use tokio::task::JoinSet;

use crate::context::Context;
use crate::helpers::{put, refused, until_key};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            lists_are_in_bytewise_order,
            [],
            "whatever the locale: digits, capitals, accents, the last code point"
        ),
        behaviour!(
            lists_take_prefixes_and_ranges,
            [],
            "from is inclusive, until exclusive, a prefix is literal"
        ),
        behaviour!(
            pages_of_any_size_add_up,
            [],
            "limit 1, 7 and 100 show the same objects, each once"
        ),
        behaviour!(an_empty_list_is_an_empty_page, [], "with a revision to watch from"),
        behaviour!(
            a_list_sees_one_kind_only,
            [],
            "also where one kind's name begins with another's"
        ),
        behaviour!(
            a_list_sees_acknowledged_writes,
            [],
            "a page read after a commit shows it, and its revision is no older"
        ),
        behaviour!(
            pages_hold_while_others_write,
            [],
            "an object that exists throughout appears exactly once"
        ),
        behaviour!(
            a_list_and_a_watch_join_without_a_gap,
            [history],
            "watching from the first page's revision leads to the final state"
        ),
        behaviour!(impossible_page_limits_are_refused, [], "none, or more than the store allows"),
    ]
}

fn ids(objects: &[Object]) -> Vec<&str> {
    objects.iter().map(|object| object.key.id.as_str()).collect()
}

async fn fill(ctx: &Context, names: &[&str]) -> Result<String, Failure> {
    for id in names {
        put(ctx.store(), Put::new(ctx.key(id), "v")).await?;
    }
    Ok(ctx.kind("a"))
}

const ODD_IDS: [&str; 14] = [
    "9",
    "a",
    "B",
    "á",
    "a\u{10FFFF}",
    "10",
    "ab",
    "a b",
    "a\u{301}",
    "~",
    "Z",
    "aB",
    "_",
    "\u{10FFFF}",
];

async fn lists_are_in_bytewise_order(ctx: Context) -> Result<(), Failure> {
    let kind = fill(&ctx, &ODD_IDS).await?;
    let mut expected = ODD_IDS;
    expected.sort_unstable_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    for limit in [1, 3, 100] {
        let objects = ctx.store().list_all(&Query::new(&kind).limit(limit)).await?;
        ensure_eq!(ids(&objects), expected, "{limit} a page");
    }
    Ok(())
}

async fn lists_take_prefixes_and_ranges(ctx: Context) -> Result<(), Failure> {
    let more = ["a%", "a_", "a%b", "axb"];
    let kind = fill(&ctx, &ODD_IDS).await?;
    fill(&ctx, &more).await?;
    let mut all: Vec<&str> = ODD_IDS.into_iter().chain(more).collect();
    all.sort_unstable();
    let query = || Query::new(&kind);
    let queries = [
        query().prefix("a"),
        query().prefix("a%"),
        query().prefix("a_"),
        query().prefix("á"),
        query().prefix("\u{10FFFF}"),
        query().prefix("nothing"),
        query().from("a"),
        query().from("a").until("b"),
        query().until("a"),
        query().from("aB").until("ab"),
        query().from("b").until("a"),
        query().prefix("a").from("aa"),
        query().prefix("a").from("A").until("ab"),
        query().from("a\u{10FFFF}"),
    ];
    for query in queries {
        let expected: Vec<&str> =
            all.iter().copied().filter(|id| query.range.contains(id)).collect();
        for limit in [2, 100] {
            let objects = ctx.store().list_all(&query.clone().limit(limit)).await?;
            ensure_eq!(ids(&objects), expected, "{:?}, {limit} a page", query.range);
        }
    }
    Ok(())
}

async fn pages_of_any_size_add_up(ctx: Context) -> Result<(), Failure> {
    let names: Vec<String> = (0..25).map(|n| format!("id-{n}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    let kind = fill(&ctx, &names).await?;
    names.sort_unstable();
    for limit in [1, 7, 25, 26, 100] {
        let mut query = Query::new(&kind).limit(limit);
        let mut seen = Vec::new();
        let mut last_revision = 0;
        for _ in 0..200 {
            let page: Page = ctx.store().list(&query).await?;
            ensure!(page.objects.len() <= limit, "{} on a page of {limit}", page.objects.len());
            ensure!(page.revision >= last_revision, "revisions of pages went back");
            last_revision = page.revision;
            seen.extend(page.objects);
            let Some(next) = page.next else { break };
            let last = seen.last().map(|object| object.key.id.as_str());
            ensure!(last.is_none_or(|last| last <= next.as_str()), "{next:?} lies behind {last:?}");
            query.after = Some(next);
        }
        ensure_eq!(ids(&seen), names, "{limit} a page");
        ensure!(seen.iter().all(|o| o.revision <= last_revision), "a page older than its objects");
    }
    let rest = ctx.store().list_all(&Query::new(&kind).after("id-3").limit(4)).await?;
    let expected: Vec<&str> = names.iter().copied().filter(|id| *id > "id-3").collect();
    ensure_eq!(ids(&rest), expected, "behind an id");
    let behind = ctx.store().list_all(&Query::new(&kind).after("id-3zzz").limit(4)).await?;
    let expected: Vec<&str> = names.iter().copied().filter(|id| *id > "id-3zzz").collect();
    ensure_eq!(ids(&behind), expected, "behind an id that is not there");
    Ok(())
}

async fn an_empty_list_is_an_empty_page(ctx: Context) -> Result<(), Failure> {
    let revision = ctx.put(&ctx.other_key("x"), "v").await?;
    let page = ctx.store().list(&Query::new(ctx.kind("a"))).await?;
    ensure_eq!((page.objects.len(), page.next), (0, None));
    ensure!(page.revision >= revision);
    Ok(())
}

async fn a_list_sees_one_kind_only(ctx: Context) -> Result<(), Failure> {
    for suffix in ["x", "xy", "x-y", "X", "x%"] {
        let key = tenure::Key::new(ctx.kind(suffix), suffix);
        put(ctx.store(), Put::new(key, "v")).await?;
    }
    for suffix in ["x", "xy", "x-y", "X", "x%"] {
        let page = ctx.store().list(&Query::new(ctx.kind(suffix))).await?;
        ensure_eq!(ids(&page.objects), [suffix]);
    }
    Ok(())
}

async fn a_list_sees_acknowledged_writes(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(2).await?;
    let key = ctx.key("one");
    for n in 0..20 {
        let write = Put::new(key.clone(), n.to_string());
        let revision = put(&handles[n % 2], write).await?.revision;
        let page = handles[(n + 1) % 2].list(&Query::new(&key.kind)).await?;
        ensure_eq!(page.objects.len(), 1);
        ensure_eq!(page.objects[0].revision, revision, "the object listed after write {n}");
        ensure!(page.revision >= revision);
    }
    Ok(())
}

/// Writers that come and go between objects which stay. They stop when this is dropped, so that a
/// check that fails leaves nobody writing behind it.
struct Disturbance(JoinSet<Result<(), Failure>>);

impl Disturbance {
    async fn start(ctx: &Context) -> Result<Self, Failure> {
        for n in 0..40 {
            ctx.put(&ctx.key(&format!("{n:03}-stays")), "v").await?;
        }
        let mut writers = JoinSet::new();
        for writer in 0..3 {
            let ctx = ctx.clone();
            writers.spawn(async move {
                for n in 0.. {
                    let stays = ctx.key(&format!("{:03}-stays", (n * 7 + writer) % 40));
                    ctx.put(&stays, &format!("{writer}-{n}")).await?;
                    let goes = ctx.key(&format!("{:03}-goes-{writer}", (n * 11) % 40));
                    ctx.put(&goes, "v").await?;
                    if n % 3 != 0 {
                        ctx.store().delete(&goes).await?;
                    }
                    // A store in memory never waits, and only who waits can be stopped.
                    tokio::task::yield_now().await;
                }
                Ok(())
            });
        }
        Ok(Self(writers))
    }

    async fn stop(mut self) -> Result<(), Failure> {
        self.0.abort_all();
        while let Some(ended) = self.0.join_next().await {
            match ended {
                Ok(ended) => ended?,
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

async fn pages_hold_while_others_write(ctx: Context) -> Result<(), Failure> {
    let kind = ctx.kind("a");
    let disturbance = Disturbance::start(&ctx).await?;
    for round in 0..12 {
        let query = Query::new(&kind).limit([1, 7, 30][round % 3]);
        let objects = ctx.store().list_all(&query).await?;
        let seen = ids(&objects);
        ensure!(
            seen.is_sorted_by(|a, b| a < b),
            "out of order or twice in round {round}: {seen:?}"
        );
        let stays = seen.iter().filter(|id| id.ends_with("-stays")).count();
        ensure_eq!(stays, 40, "objects that exist throughout, in round {round}");
    }
    disturbance.stop().await
}

async fn a_list_and_a_watch_join_without_a_gap(ctx: Context) -> Result<(), Failure> {
    let kind = ctx.kind("a");
    let disturbance = Disturbance::start(&ctx).await?;
    for round in 0..3 {
        let first = ctx.store().list(&Query::new(&kind).limit(5)).await?;
        let mut known: BTreeMap<String, u64> = BTreeMap::new();
        let mut after = first.next.clone();
        let mut objects = first.objects;
        while let Some(next) = after {
            let page = ctx.store().list(&Query::new(&kind).limit(5).after(next)).await?;
            after = page.next;
            objects.extend(page.objects);
        }
        for object in objects {
            known.insert(object.key.id, object.revision);
        }
        let mut watch = ctx.store().watch(&WatchRequest::kind(&kind).after(first.revision)).await?;
        let mark = ctx.key(&format!("~mark-{round}"));
        let marked = ctx.put(&mark, "v").await?;
        for batch in until_key(&mut watch, &mark).await? {
            // A later page may already show more than an event tells.
            follow(&mut known, &batch, |seen| seen <= batch.revision);
        }
        // The state at the mark cannot be read any more; the watch from there on leads to the end.
        for (id, revision) in &known {
            ensure!(*revision <= marked, "{id} is known at {revision}, behind the mark {marked}");
        }
        let stays = known.keys().filter(|id| id.ends_with("-stays")).count();
        ensure_eq!(stays, 40, "objects that exist throughout");
        reach_the_end(&ctx, watch, known, round).await?;
    }
    disturbance.stop().await
}

/// Brings what is known up to date with a batch, for objects whose known revision may be replaced.
fn follow(known: &mut BTreeMap<String, u64>, batch: &Batch, replaces: impl Fn(u64) -> bool) {
    for event in &batch.events {
        let id = &event.key().id;
        if known.get(id).is_some_and(|seen| !replaces(*seen)) {
            continue;
        }
        match event {
            Event::Put(_) => known.insert(id.clone(), batch.revision),
            Event::Delete { .. } => known.remove(id),
        };
    }
}

/// Follows the watch until what it knows is what a list shows.
async fn reach_the_end(
    ctx: &Context,
    mut watch: Watch,
    mut known: BTreeMap<String, u64>,
    round: u32,
) -> Result<(), Failure> {
    let limit = ctx.caps().limits.page_objects.min(200);
    let page = ctx.store().list(&Query::new(ctx.kind("a")).limit(limit)).await?;
    ensure_eq!(page.next, None, "a page that holds everything");
    let end = ctx.key(&format!("~end-{round}"));
    let ended = ctx.put(&end, "v").await?;
    let at = page.revision;
    ensure!(at < ended, "a page read at revision {at} does not show revision {ended}");
    for batch in until_key(&mut watch, &end).await?.iter().filter(|batch| batch.revision <= at) {
        follow(&mut known, batch, |_| true);
    }
    let listed: BTreeMap<String, u64> =
        page.objects.into_iter().map(|object| (object.key.id, object.revision)).collect();
    ensure_eq!(known, listed, "what the watcher knows at revision {at}, and the list");
    Ok(())
}

async fn impossible_page_limits_are_refused(ctx: Context) -> Result<(), Failure> {
    let kind = ctx.kind("a");
    let none = refused(ctx.store().list(&Query::new(&kind).limit(0)).await)?;
    ensure_eq!(none.code(), "invalid");
    let max = ctx.caps().limits.page_objects;
    let many = refused(ctx.store().list(&Query::new(&kind).limit(max + 1)).await)?;
    ensure_eq!(many.code(), "limit_exceeded");
    ctx.store().list(&Query::new(&kind).limit(max)).await?;
    Ok(())
}
