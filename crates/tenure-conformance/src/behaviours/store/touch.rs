//! Touch: a longer life and nothing else.

use std::time::Duration;

use tenure::store::{Expect, Put, Touch, Touched, WatchRequest};
use tenure::{Error, Key};

use crate::context::Context;
use crate::helpers::{existing, put, refused, until_key};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_touch_starts_the_life_anew,
            [ttl],
            "the object outlives its first life, and ends after the last touch's"
        ),
        behaviour!(
            a_touch_changes_nothing_else,
            [ttl],
            "version, payload, token and labels in time stay; the revision too where declared"
        ),
        behaviour!(
            touches_stand_alone_and_answer_in_order,
            [ttl],
            "missing, changed and immortal objects do not hold up the others"
        ),
        behaviour!(
            a_touch_wakes_no_watcher,
            [ttl],
            "where the store declares that touches keep the revision"
        ),
        behaviour!(a_touch_revives_nothing, [ttl], "an expired object stays expired"),
        behaviour!(a_thousand_touches_are_one_request, [ttl], "each with its own answer"),
        behaviour!(a_touch_and_an_update_agree, [ttl], "racing, they end in one consistent state"),
    ]
}

fn touch(key: &Key, revision: u64, ttl: Duration) -> Touch {
    Touch { key: key.clone(), revision, ttl }
}

async fn touch_one(ctx: &Context, touch: Touch) -> Result<tenure::Result<Touched>, Failure> {
    let mut answers = ctx.store().touch(vec![touch]).await?;
    ensure_eq!(answers.len(), 1, "answers to one touch");
    Ok(answers.remove(0))
}

async fn a_touch_starts_the_life_anew(ctx: Context) -> Result<(), Failure> {
    let (kept, left) = (ctx.key("kept"), ctx.key("left"));
    let life = ctx.ttl_of(ctx.ttl() * 3 / 2);
    let mut begun = ctx.uptime();
    let mut revision = put(ctx.store(), Put::new(kept.clone(), "v").ttl(life)).await?.revision;
    put(ctx.store(), Put::new(left.clone(), "v").ttl(life)).await?;
    let left_ends = ctx.uptime() + life;
    let mut ends = Duration::ZERO;
    for _ in 0..3 {
        ctx.pass(life / 2).await;
        let now = ctx.uptime();
        let touched = touch_one(&ctx, touch(&kept, revision, life)).await?;
        ensure_in_time!(ctx.uptime() < begun + life, "touched after its life: {touched:?}");
        let touched = touched?;
        begun = now;
        ensure!(touched.ttl >= life, "granted {:?} of {life:?}", touched.ttl);
        revision = touched.revision;
        ends = ctx.uptime() + touched.ttl;
    }
    ctx.outlive(&left, left_ends).await?;
    ensure_eq!(ctx.store().get(&left).await?, None, "the object that nobody touched");
    let object = existing(ctx.store(), &kept).await?;
    ensure_eq!((object.version, object.revision), (1, revision));
    ctx.outlive(&kept, ends).await?;
    ensure_eq!(ctx.store().get(&kept).await?, None, "after the last life");
    Ok(())
}

async fn a_touch_changes_nothing_else(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let life = ctx.ttl_of(Duration::from_secs(60));
    put(ctx.store(), Put::new(key.clone(), "0")).await?;
    put(ctx.store(), Put::new(key.clone(), "v").label("a", "b").ttl(life)).await?;
    let before = existing(ctx.store(), &key).await?;
    ctx.pass(Duration::from_millis(5)).await;
    let touched = touch_one(&ctx, touch(&key, before.revision, life * 2)).await??;
    let mut after = existing(ctx.store(), &key).await?;
    ensure!(after.expires_in.is_some_and(|left| left > life), "{:?} left", after.expires_in);
    ensure_eq!(after.revision, touched.revision);
    if ctx.caps().touch_keeps_revision {
        ensure_eq!(touched.revision, before.revision, "the revision after a touch");
    } else {
        ensure!(touched.revision > before.revision);
    }
    (after.expires_in, after.revision) = (before.expires_in, before.revision);
    ensure_eq!(after, before);
    // The version still matches, so a touch disturbs nobody's update.
    let update = Put::new(key.clone(), "w").ttl(life).expect(Expect::Version(2));
    ensure_eq!(put(ctx.store(), update).await?.version, 3);
    Ok(())
}

async fn touches_stand_alone_and_answer_in_order(ctx: Context) -> Result<(), Failure> {
    let life = ctx.ttl_of(Duration::from_secs(60));
    let mortal = |id: &str| Put::new(ctx.key(id), "v").ttl(life);
    let good = put(ctx.store(), mortal("good")).await?;
    let stale = put(ctx.store(), mortal("changed")).await?;
    let mut changed = mortal("changed");
    changed.payload = "w".into();
    let changed = put(ctx.store(), changed).await?;
    let immortal = put(ctx.store(), Put::new(ctx.key("immortal"), "v")).await?;
    let also = put(ctx.store(), mortal("also good")).await?;
    let touches = vec![
        touch(&ctx.key("missing"), good.revision, life),
        touch(&ctx.key("good"), good.revision, life),
        touch(&ctx.key("changed"), stale.revision, life),
        touch(&ctx.key("immortal"), immortal.revision, life),
        touch(&ctx.key("also good"), also.revision, life),
    ];
    let answers = ctx.store().touch(touches).await?;
    let codes: Vec<_> =
        answers.iter().map(|a| a.as_ref().map_or_else(Error::code, |_| "ok")).collect();
    ensure_eq!(codes, ["not_found", "ok", "conflict", "invalid", "ok"]);
    if let Err(Error::Conflict { key, current, .. }) = &answers[2] {
        ensure_eq!((key, current.revision), (&ctx.key("changed"), changed.revision));
    }
    ensure_eq!(ctx.store().touch(vec![]).await?.len(), 0, "answers to no touch");
    Ok(())
}

async fn a_touch_wakes_no_watcher(ctx: Context) -> Result<(), Failure> {
    let (key, end) = (ctx.key("one"), ctx.key("end"));
    let life = ctx.ttl_of(Duration::from_secs(60));
    let mut revision = put(ctx.store(), Put::new(key.clone(), "v").ttl(life)).await?.revision;
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    for _ in 0..5 {
        revision = touch_one(&ctx, touch(&key, revision, life)).await??.revision;
    }
    ctx.put(&end, "v").await?;
    let told = until_key(&mut watch, &end).await?;
    match ctx.caps().touch_keeps_revision {
        true => ensure_eq!(told.len(), 1, "batches told after five touches and one put"),
        // Each touch is told, or several as one; the version shows that nothing changed.
        false => {
            for batch in &told[..told.len() - 1] {
                for event in &batch.events {
                    let same = matches!(event, tenure::store::Event::Put(o) if o.version == 1);
                    ensure!(same, "a touch was told as {event:?}");
                }
            }
        }
    }
    Ok(())
}

async fn a_touch_revives_nothing(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let gone = put(ctx.store(), Put::new(key.clone(), "v").ttl(ctx.ttl())).await?;
    let ends = ctx.uptime() + gone.ttl.unwrap_or_default();
    ctx.outlive(&key, ends).await?;
    let late = touch_one(&ctx, touch(&key, gone.revision, ctx.ttl())).await?;
    ensure_eq!(refused(late)?.code(), "not_found");
    ensure_eq!(ctx.store().get(&key).await?, None);
    Ok(())
}

async fn a_thousand_touches_are_one_request(ctx: Context) -> Result<(), Failure> {
    let many = ctx.caps().limits.touches.min(1000);
    let life = ctx.ttl_of(Duration::from_secs(60));
    let at_once = match ctx.caps().multi_object_commits {
        true => ctx.caps().limits.commit_operations.min(50),
        false => 1,
    };
    let ids: Vec<usize> = (0..many).collect();
    let mut touches = Vec::new();
    for chunk in ids.chunks(at_once) {
        let commit = chunk.iter().fold(tenure::store::Commit::new(), |commit, n| {
            commit.put(Put::new(ctx.key(&n.to_string()), "v").ttl(life))
        });
        let revision = ctx.store().commit(commit).await?.revision.ok_or("no revision")?;
        touches.extend(chunk.iter().map(|n| {
            // Every tenth is stale.
            let off = u64::from(n % 10 == 0);
            touch(&ctx.key(&n.to_string()), revision - off, life * 2)
        }));
    }
    let answers = ctx.store().touch(touches).await?;
    ensure_eq!(answers.len(), many, "answers");
    for (n, answer) in answers.iter().enumerate() {
        let refused = matches!(answer, Err(Error::Conflict { .. }));
        ensure_eq!(refused, n % 10 == 0, "touch {n} was answered {answer:?}");
    }
    let last = existing(ctx.store(), &ctx.key(&(many - 1).to_string())).await?;
    ensure!(last.expires_in.is_some_and(|left| left > life), "{:?} left", last.expires_in);
    Ok(())
}

async fn a_touch_and_an_update_agree(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(2).await?;
    let (short, long) = (ctx.ttl_of(Duration::from_secs(60)), ctx.ttl_of(Duration::from_secs(600)));
    for round in 0..30 {
        let key = ctx.key(&round.to_string());
        let revision = put(ctx.store(), Put::new(key.clone(), "v").ttl(short)).await?.revision;
        let update = Put::new(key.clone(), "w").ttl(short).expect(Expect::Revision(revision));
        let updating = handles[round % 2].commit(update);
        let touching = handles[(round + 1) % 2].touch(vec![touch(&key, revision, long)]);
        let (updated, touched) = futures::future::join(updating, touching).await;
        let touched = touched?.remove(0);
        let object = existing(ctx.store(), &key).await?;
        let left = object.expires_in.unwrap_or_default();
        match (updated, touched) {
            (Ok(done), touched) => {
                ensure_eq!(Some(object.revision), done.revision, "round {round}");
                ensure_eq!(object.version, 2, "round {round}");
                // The update came last in any case, so its life counts.
                ensure!(left <= short, "round {round}: {left:?} left after an update");
                match touched {
                    Ok(_) | Err(Error::Conflict { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            (Err(Error::Conflict { .. }), Ok(touched)) => {
                ensure!(!ctx.caps().touch_keeps_revision, "round {round}: a touch beat an update");
                ensure_eq!((object.version, object.revision), (1, touched.revision));
            }
            (updated, touched) => {
                let what = format!("round {round}: {updated:?} and {touched:?}");
                return Err(Failure::new(what));
            }
        }
    }
    Ok(())
}
