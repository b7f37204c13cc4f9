//! Names: unique within a kind, at every instant, whatever a commit does at once.

use tenure::store::{Commit, Expect, Put};
use tenure::{Error, Key};

use crate::context::Context;
use crate::helpers::{put, refused};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_name_belongs_to_one_object_of_a_kind,
            [names],
            "a second claim is refused and told who has the name"
        ),
        behaviour!(the_same_name_is_free_in_another_kind, [names], "kinds do not share names"),
        behaviour!(a_name_is_free_after_delete_and_rename, [names], "given up is free at once"),
        behaviour!(
            an_object_is_found_by_its_name,
            [names],
            "exactly as written, in any script, and only under its present name"
        ),
        behaviour!(
            one_of_many_gets_the_name,
            [names],
            "of many concurrent claims of one name, one succeeds"
        ),
        behaviour!(
            names_can_be_swapped_in_one_commit,
            [names, multi],
            "uniqueness is judged on the state after the commit"
        ),
        behaviour!(
            a_name_passes_on_within_a_commit,
            [names, multi],
            "one object gives it up or is deleted, another takes it, in either order"
        ),
        behaviour!(
            two_claims_in_one_commit_are_refused,
            [names, multi],
            "and nothing of that commit is applied"
        ),
        behaviour!(
            conditions_are_judged_before_names,
            [names],
            "a stale write to a taken name is told that it is stale"
        ),
    ]
}

fn named(key: &Key, name: &str) -> Put {
    Put::new(key.clone(), "v").name(name)
}

fn expect_taken(error: &Error, name: &str, holder: &Key) -> Result<(), Failure> {
    match error {
        Error::NameTaken { kind, name: told, id } => {
            ensure_eq!((kind, told.as_str(), id), (&holder.kind, name, &holder.id));
            Ok(())
        }
        other => Err(Failure::new(format!("not NameTaken: {other}"))),
    }
}

async fn holder(ctx: &Context, key: &Key, name: &str) -> Result<Option<String>, Failure> {
    Ok(ctx.store().get_by_name(&key.kind, name).await?.map(|object| object.key.id))
}

async fn a_name_belongs_to_one_object_of_a_kind(ctx: Context) -> Result<(), Failure> {
    let (a, b) = (ctx.key("a"), ctx.key("b"));
    put(ctx.store(), named(&a, "n")).await?;
    expect_taken(&refused(ctx.store().commit(named(&b, "n")).await)?, "n", &a)?;
    ensure_eq!(ctx.store().get(&b).await?, None, "what a refused claim left");
    // Its own name is not in its way.
    let again = Put::new(a.clone(), "w").name("n");
    ensure_eq!(put(ctx.store(), again).await?.version, 2);
    put(ctx.store(), named(&b, "m")).await?;
    expect_taken(&refused(ctx.store().commit(named(&b, "n")).await)?, "n", &a)?;
    ensure_eq!(holder(&ctx, &a, "n").await?, Some("a".into()));
    ensure_eq!(holder(&ctx, &a, "m").await?, Some("b".into()));
    Ok(())
}

async fn the_same_name_is_free_in_another_kind(ctx: Context) -> Result<(), Failure> {
    let (here, there) = (ctx.key("a"), ctx.other_key("b"));
    put(ctx.store(), named(&here, "n")).await?;
    put(ctx.store(), named(&there, "n")).await?;
    ensure_eq!(holder(&ctx, &here, "n").await?, Some("a".into()));
    ensure_eq!(holder(&ctx, &there, "n").await?, Some("b".into()));
    Ok(())
}

async fn a_name_is_free_after_delete_and_rename(ctx: Context) -> Result<(), Failure> {
    let (a, b, c) = (ctx.key("a"), ctx.key("b"), ctx.key("c"));
    put(ctx.store(), named(&a, "n")).await?;
    put(ctx.store(), named(&a, "m")).await?;
    put(ctx.store(), named(&b, "n")).await?;
    ctx.store().delete(&b).await?;
    put(ctx.store(), named(&c, "n")).await?;
    // A put replaces all of the object, its name included.
    put(ctx.store(), Put::new(c.clone(), "v")).await?;
    ensure_eq!(holder(&ctx, &a, "n").await?, None);
    put(ctx.store(), named(&b, "n")).await?;
    Ok(())
}

async fn an_object_is_found_by_its_name(ctx: Context) -> Result<(), Failure> {
    let names = ["plain", "Plain", "\u{e9}", "e\u{301}", "日本 語", "a'b\"c", "%", "_"];
    for (n, name) in names.iter().enumerate() {
        put(ctx.store(), named(&ctx.key(&n.to_string()), name)).await?;
    }
    let kind = ctx.kind("a");
    for (n, name) in names.iter().enumerate() {
        let object = ctx.store().get_by_name(&kind, name).await?;
        let object = object.ok_or_else(|| format!("nothing is named {name:?}"))?;
        ensure_eq!(object.key.id, n.to_string(), "the id named {name:?}");
        ensure_eq!(object.name.as_deref(), Some(*name));
    }
    ensure_eq!(ctx.store().get_by_name(&kind, "nobody").await?, None);
    Ok(())
}

async fn one_of_many_gets_the_name(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(3).await?;
    for round in 0..5 {
        let claims = (0..12).map(|n| {
            let store = handles[n % handles.len()].clone();
            let put = named(&ctx.key(&format!("{round}-{n}")), &format!("name-{round}"));
            async move {
                match store.commit(put).await {
                    Ok(_) => Ok(true),
                    Err(Error::NameTaken { .. }) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
        });
        let won = all_at_once(claims).await?.into_iter().filter(|won| *won).count();
        ensure_eq!(won, 1, "winners of round {round}");
    }
    Ok(())
}

async fn names_can_be_swapped_in_one_commit(ctx: Context) -> Result<(), Failure> {
    let (a, b, c) = (ctx.key("a"), ctx.key("b"), ctx.key("c"));
    for (key, name) in [(&a, "1"), (&b, "2"), (&c, "3")] {
        put(ctx.store(), named(key, name)).await?;
    }
    let swap = Commit::new().put(named(&a, "2")).put(named(&b, "3")).put(named(&c, "1"));
    ctx.store().commit(swap).await?;
    for (name, id) in [("2", "a"), ("3", "b"), ("1", "c")] {
        ensure_eq!(holder(&ctx, &a, name).await?, Some(id.into()), "holder of {name}");
    }
    expect_taken(&refused(ctx.store().commit(named(&a, "1")).await)?, "1", &c)
}

async fn a_name_passes_on_within_a_commit(ctx: Context) -> Result<(), Failure> {
    let (a, b, c) = (ctx.key("a"), ctx.key("b"), ctx.key("c"));
    put(ctx.store(), named(&a, "n")).await?;
    // The taker first, the giver second: the order of writes does not matter.
    ctx.store().commit(Commit::new().put(named(&b, "n")).put(named(&a, "m"))).await?;
    ensure_eq!(holder(&ctx, &a, "n").await?, Some("b".into()));
    ctx.store().commit(Commit::new().put(named(&c, "n")).delete(b.clone(), Expect::Any)).await?;
    ensure_eq!(holder(&ctx, &a, "n").await?, Some("c".into()));
    ensure_eq!(ctx.store().get(&b).await?, None);
    ctx.store().commit(Commit::new().delete(c.clone(), Expect::Any).put(named(&b, "n"))).await?;
    ensure_eq!(holder(&ctx, &a, "n").await?, Some("b".into()));
    Ok(())
}

async fn two_claims_in_one_commit_are_refused(ctx: Context) -> Result<(), Failure> {
    let (a, b, c) = (ctx.key("a"), ctx.key("b"), ctx.key("c"));
    let both = Commit::new().put(named(&a, "n")).put(named(&b, "n"));
    let error = refused(ctx.store().commit(both).await)?;
    ensure_eq!(error.code(), "name_taken");
    ensure_eq!(ctx.store().get(&a).await?, None);
    put(ctx.store(), named(&a, "n")).await?;
    // The holder keeps the name in this very commit.
    let keeps = Commit::new().put(Put::new(a.clone(), "w").name("n")).put(named(&b, "n"));
    ensure_eq!(refused(ctx.store().commit(keeps).await)?.code(), "name_taken");
    let with_bystander = Commit::new().put(Put::new(c.clone(), "v")).put(named(&b, "n"));
    expect_taken(&refused(ctx.store().commit(with_bystander).await)?, "n", &a)?;
    ensure_eq!(ctx.store().get(&c).await?, None, "a bystander of a refused commit");
    Ok(())
}

async fn conditions_are_judged_before_names(ctx: Context) -> Result<(), Failure> {
    let (a, b) = (ctx.key("a"), ctx.key("b"));
    put(ctx.store(), named(&a, "n")).await?;
    put(ctx.store(), Put::new(b.clone(), "v")).await?;
    let stale = ctx.store().commit(named(&b, "n").expect(Expect::Version(9))).await;
    ensure_eq!(refused(stale)?.code(), "conflict");
    Ok(())
}
