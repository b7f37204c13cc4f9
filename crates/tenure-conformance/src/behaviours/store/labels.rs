//! Labels, and lists that select by them.

use std::collections::BTreeSet;

use tenure::Labels;
use tenure::store::{Put, Query, Requirement, Selector};

use crate::context::Context;
use crate::helpers::{existing, put};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            labels_are_replaced_as_a_whole,
            [],
            "a put sets all labels; none of the old ones stay"
        ),
        behaviour!(
            labels_take_any_script,
            [],
            "keys and values come back as written, empty values too"
        ),
        behaviour!(
            every_selector_selects_what_it_says,
            [labels],
            "equals, not equals, in, notin, exists, absent, and all of them together"
        ),
        behaviour!(
            a_selected_list_pages_to_the_end,
            [labels],
            "a selector that matches little still finds everything, page by page"
        ),
    ]
}

async fn labels_are_replaced_as_a_whole(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    put(ctx.store(), Put::new(key.clone(), "v").label("a", "1").label("b", "2")).await?;
    put(ctx.store(), Put::new(key.clone(), "v").label("b", "3").label("c", "4")).await?;
    let labels = existing(ctx.store(), &key).await?.labels;
    let expected = [("b", "3"), ("c", "4")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    ensure_eq!(labels, Labels::from(expected));
    put(ctx.store(), Put::new(key.clone(), "v")).await?;
    ensure!(existing(ctx.store(), &key).await?.labels.is_empty());
    Ok(())
}

async fn labels_take_any_script(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let pairs = [("ключ", "值"), ("empty", ""), ("quote'\"\\", "{}[],=!()"), ("🦀", "e\u{301}")];
    let labels: Labels = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    put(ctx.store(), Put::new(key.clone(), "v").labels(labels.clone())).await?;
    ensure_eq!(existing(ctx.store(), &key).await?.labels, labels);
    if !ctx.caps().labels {
        return Ok(());
    }
    for (k, v) in pairs {
        let page =
            ctx.store().list(&Query::new(&key.kind).selector(Selector::equals(k, v))).await?;
        ensure_eq!(page.objects.len(), 1, "objects with {k:?}={v:?}");
    }
    Ok(())
}

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

async fn every_selector_selects_what_it_says(ctx: Context) -> Result<(), Failure> {
    let kind = ctx.kind("a");
    let objects: [(&str, &[(&str, &str)]); 5] = [
        ("1", &[]),
        ("2", &[("app", "web")]),
        ("3", &[("app", "web"), ("tier", "test")]),
        ("4", &[("app", "db"), ("tier", "")]),
        ("5", &[("App", "web"), ("tier", "live")]),
    ];
    for (id, labels) in objects {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        put(ctx.store(), Put::new(ctx.key(id), "v").labels(labels)).await?;
    }
    let within = |key: &str, values: &[&str]| Requirement::In(key.into(), strings(values));
    let without = |key: &str, values: &[&str]| Requirement::NotIn(key.into(), strings(values));
    let cases: [(Vec<Requirement>, &[&str]); 11] = [
        (vec![], &["1", "2", "3", "4", "5"]),
        (vec![within("app", &["web"])], &["2", "3"]),
        (vec![within("app", &["web", "db", "x"])], &["2", "3", "4"]),
        (vec![within("app", &["none"])], &[]),
        (vec![within("tier", &[""])], &["4"]),
        (vec![without("app", &["web"])], &["1", "4", "5"]),
        (vec![without("tier", &["test", "live"])], &["1", "2", "4"]),
        (vec![Requirement::Exists("tier".into())], &["3", "4", "5"]),
        (vec![Requirement::Absent("tier".into())], &["1", "2"]),
        (vec![within("app", &["web"]), Requirement::Absent("tier".into())], &["2"]),
        (vec![Requirement::Exists("app".into()), without("app", &["db"])], &["2", "3"]),
    ];
    for (requirements, expected) in cases {
        let selector = Selector(requirements);
        let query = Query::new(&kind).selector(selector.clone());
        let ids: Vec<_> =
            ctx.store().list_all(&query).await?.into_iter().map(|object| object.key.id).collect();
        ensure_eq!(ids, expected, "selected by {selector:?}");
    }
    Ok(())
}

async fn a_selected_list_pages_to_the_end(ctx: Context) -> Result<(), Failure> {
    let kind = ctx.kind("a");
    let mut wanted = BTreeSet::new();
    for n in 0..60 {
        let id = format!("{n:03}");
        let rare = n % 17 == 3;
        let put_one = Put::new(ctx.key(&id), "v").label("rare", if rare { "yes" } else { "no" });
        put(ctx.store(), put_one).await?;
        if rare {
            wanted.insert(id);
        }
    }
    for limit in [1, 2, 50] {
        let query = Query::new(&kind).selector(Selector::equals("rare", "yes")).limit(limit);
        let ids: BTreeSet<_> =
            ctx.store().list_all(&query).await?.into_iter().map(|object| object.key.id).collect();
        ensure_eq!(ids, wanted, "selected {limit} a page");
    }
    Ok(())
}
