//! Tables from before, many processes starting at once, and programs that are too old.

use std::time::Duration;

use futures::future::join_all;
use tenure::Error;
use tenure::store::{Expect, Query, Selector, WatchRequest, WriteCondition};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_postgres::{Options, PostgresStore, migrate};

use crate::common::{OrFail, Outcome, Server, connect, key, put, raw, refusal};

/// The documents' table before `resource_version`, with columns of somebody else.
const OLD: &str = "
    create table objects (
        object_type text not null,
        id text primary key,
        name text,
        payload bytea not null,
        labels text,
        created_at_ms bigint not null,
        updated_at_ms bigint not null,
        scope text not null,
        version bigint,
        status text default 'new'
    );
    create unique index objects_type_name on objects (object_type, name) where name is not null;
    insert into objects values
        ('thing', 'b', 'second', '\\x0102', '{\"app\":\"web\"}', 20, 25, 's', 7, 'old'),
        ('thing', 'a', 'first', '\\x00ff', null, 10, 10, 's', null, 'old'),
        ('other', 'c', null, '', '', 30, 30, 's', null, 'old');";

/// What an old binary does, word for word.
const OLD_UPSERT: &str = "
    insert into objects (object_type, id, name, payload, labels, created_at_ms, updated_at_ms, scope)
    values ('thing', 'new-id', 'first', '\\xdead', null, 99, 99, 's')
    on conflict (object_type, name) where name is not null
    do update set payload = excluded.payload, updated_at_ms = excluded.updated_at_ms";

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("migration::an_old_table_is_adopted", move || old_table(server));
    trials.test("migration::an_old_table_with_versions_keeps_them", move || kept(server));
    trials.test("migration::tables_of_version_one_are_upgraded", move || version_one(server));
    trials.test("migration::eight_start_at_once", move || eight(server));
    trials.test("migration::an_old_binary_is_refused", move || old_binary(server));
    trials.test("migration::a_program_too_old_is_refused", move || too_old(server));
    trials.test("migration::opening_raises_the_writer_level", move || raised(server));
    trials.test("migration::newer_tables_are_refused", move || newer(server));
    trials.test("migration::old_labels_become_strings", move || odd_labels(server));
    trials.test("migration::old_labels_that_are_no_object_are_told", move || bad_labels(server));
    trials.test("migration::schemas_are_separate_stores", move || schemas(server));
    trials.test("migration::ids_sort_bytewise_in_any_language", move || language(server));
}

async fn old_table(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let client = raw(&url).await?;
    client.batch_execute(OLD).await.or_fail()?;
    let store = connect(&url).await?;

    let a = store.get(&key("a")).await?.ok_or("a is gone")?;
    ensure_eq!(a.payload.as_ref(), &[0x00, 0xff]);
    ensure_eq!((a.version, a.created_at_ms, a.updated_at_ms), (1, 10, 10));
    ensure_eq!((a.revision, a.created_revision, a.token), (1, 1, 1));
    let b = store.get_by_name("thing", "second").await?.ok_or("b is gone")?;
    ensure_eq!((b.version, b.revision, b.labels["app"].as_str()), (1, 2, "web"));
    let page = store.list(&Query::new("other").selector(Selector::default())).await?;
    ensure_eq!((page.objects.len(), page.revision), (1, 3));
    let web = Query::new("thing").selector(Selector::equals("app", "web"));
    ensure_eq!(store.list_all(&web).await?.len(), 1);

    // History begins here.
    store.watch(&WatchRequest::default().after(3)).await?;
    let mut before = store.watch(&WatchRequest::default().after(1)).await?;
    let gone = before.next().await.ok_or("the watch ended")?;
    ensure!(matches!(gone, Err(Error::Compacted { oldest: 3, .. })), "{gone:?}");

    // Old rows change as any other, and keep what is not ours.
    let version_1 = WriteCondition::MatchResourceVersion(1);
    let changed = store.put_if(put("a", "new").name("first"), version_1).await?;
    ensure_eq!((changed.version, changed.revision, changed.created_at_ms), (2, 4, 10));
    ensure!(store.put_if(put("a", "late"), version_1).await.is_err_and(|e| e.is_conflict()));
    store.put_if(put("z", "fresh"), WriteCondition::MustCreate).await?;
    let row = client
        .query_one("select scope, status from objects where id = 'a'", &[])
        .await
        .or_fail()?;
    ensure_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("s", "old"));
    // The same id in another kind is another object now.
    store.put_if(put("c", "thing c"), WriteCondition::MustCreate).await?;
    Ok(())
}

async fn kept(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let client = raw(&url).await?;
    client.batch_execute(OLD).await.or_fail()?;
    let versioned = "alter table objects add column resource_version bigint not null default 1;
                     update objects set resource_version = 41 where id = 'a'";
    client.batch_execute(versioned).await.or_fail()?;
    let store = connect(&url).await?;
    let a = store.get(&key("a")).await?.ok_or("a is gone")?;
    ensure_eq!(a.version, 41);
    let next = store.put_if(put("a", "x"), WriteCondition::MatchResourceVersion(41)).await?;
    ensure_eq!(next.version, 42);
    Ok(())
}

/// As an earlier Tenure made them, with a lease in them.
async fn version_one(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let store = connect(&url).await?;
    let life = Duration::from_millis(300);
    store.commit(put("stays", "1")).await?;
    store.commit(put("goes", "2").ttl(life)).await?;
    let head = store.list(&Query::new("thing")).await?.revision;
    store.close().await;
    let client = raw(&url).await?;
    let back = "drop index objects_mortal;
        create index objects_mortal on objects (object_type, id) where ttl_ms is not null;
        update tenure_meta set schema_version = 1";
    client.batch_execute(back).await.or_fail()?;

    let store = connect(&url).await?;
    let mut watch = store.watch(&WatchRequest::kind("thing").after(head)).await?;
    let swept = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    let swept = swept.or_fail()?.ok_or("the watch ended")??;
    ensure_eq!(swept.revision, head + 1);
    ensure!(store.get(&key("stays")).await?.is_some(), "what has no life went, too");
    let asked =
        "select schema_version, pg_get_indexdef('objects_mortal'::regclass) from tenure_meta";
    let row = client.query_one(asked, &[]).await.or_fail()?;
    ensure_eq!(row.get::<_, i32>(0), 2);
    ensure!(row.get::<_, &str>(1).contains("(created_revision)"), "the index is the old one");
    store.close().await;
    Ok(())
}

async fn eight(server: Server) -> Outcome {
    for old in [false, true] {
        let url = server.fresh_database()?;
        let client = raw(&url).await?;
        if old {
            client.batch_execute(OLD).await.or_fail()?;
        }
        let stores = join_all((0..8).map(|_| connect(&url))).await;
        for (number, store) in stores.into_iter().enumerate() {
            store?.put_if(put(format!("n{number}"), "x"), WriteCondition::MustCreate).await?;
        }
        let row = client.query_one("select revision from tenure_meta", &[]).await.or_fail()?;
        ensure_eq!(row.get::<_, i64>(0), if old { 11 } else { 8 });
    }
    Ok(())
}

async fn old_binary(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let client = raw(&url).await?;
    client.batch_execute(OLD).await.or_fail()?;
    // As long as only old programs run, they work.
    client.batch_execute(OLD_UPSERT).await.or_fail()?;
    let store = connect(&url).await?;
    let before = store.get(&key("a")).await?;

    let statements = [
        OLD_UPSERT,
        "update objects set payload = '\\xdead' where id = 'a'",
        "delete from objects where id = 'a'",
        "truncate objects",
    ];
    for sql in statements {
        let told = refusal(&client, sql).await?;
        ensure!(told.contains("too old to write to this Tenure store"), "{told}");
        ensure!(told.contains("Upgrade"), "{told}");
    }
    ensure_eq!(store.get(&key("a")).await?, before);
    ensure_eq!(store.list(&Query::new("thing")).await?.revision, 3);
    // Reading is harmless.
    let rows = client.query("select payload, labels from objects", &[]).await.or_fail()?;
    ensure_eq!(rows.len(), 3);
    Ok(())
}

async fn too_old(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let running = connect(&url).await?;
    running.commit(put("a", "x")).await?;
    let client = raw(&url).await?;
    client.batch_execute("update tenure_meta set min_writer = 2").await.or_fail()?;
    let refused =
        PostgresStore::connect(&url).await.err().ok_or("a store that is too new opened")?;
    ensure!(matches!(refused, Error::Refused { .. }), "{refused}");
    ensure!(refused.to_string().contains("level 2"), "{refused}");
    ensure!(refused.to_string().contains("upgrade"), "{refused}");
    // One that is already running is stopped from writing as well.
    let late = running.commit(put("a", "y").expect(Expect::Exists)).await;
    ensure!(matches!(late, Err(Error::Refused { .. })), "{late:?}");
    Ok(())
}

/// What an earlier program let in may no longer be safe beside this one.
async fn raised(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    connect(&url).await?.close().await;
    let client = raw(&url).await?;
    let earlier = "update tenure_meta set min_writer = 0;
        drop trigger tenure_refuse_writer on objects;
        create trigger tenure_refuse_writer before insert or update or delete or truncate on objects
            for each statement when (current_setting('tenure.writer', true) is distinct from '0')
            execute function tenure_refuse_writer()";
    client.batch_execute(earlier).await.or_fail()?;
    let store = connect(&url).await?;
    store.commit(put("a", "x")).await?;
    let asked = "select min_writer from tenure_meta";
    let level: i32 = client.query_one(asked, &[]).await.or_fail()?.get(0);
    ensure_eq!(level, tenure::backend::WRITER_LEVEL as i32);
    // One of the level that was let in before is stopped by the database itself.
    client.batch_execute("set tenure.writer = '0'").await.or_fail()?;
    let told = refusal(&client, "delete from objects").await?;
    ensure!(told.contains("too old to write"), "{told}");
    Ok(())
}

async fn newer(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    connect(&url).await?.close().await;
    raw(&url).await?.batch_execute("update tenure_meta set schema_version = 99").await.or_fail()?;
    let refused = PostgresStore::connect(&url).await.err().ok_or("tables too new were opened")?;
    ensure!(matches!(refused, Error::Refused { .. }), "{refused}");
    ensure!(refused.to_string().contains("version 99"), "{refused}");
    Ok(())
}

async fn odd_labels(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let client = raw(&url).await?;
    client.batch_execute(OLD).await.or_fail()?;
    let odd =
        r#"update objects set labels = '{"n":7,"on":true,"none":null,"s":"x"}' where id = 'a'"#;
    client.batch_execute(odd).await.or_fail()?;
    let store = connect(&url).await?;
    let labels = store.get(&key("a")).await?.ok_or("a is gone")?.labels;
    let read: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    ensure_eq!(read, [("n", "7"), ("none", "null"), ("on", "true"), ("s", "x")]);
    let seven = Query::new("thing").selector(Selector::equals("n", "7"));
    ensure_eq!(store.list_all(&seven).await?.len(), 1);
    Ok(())
}

async fn bad_labels(server: Server) -> Outcome {
    for (bad, told) in [("[1]", "thing/a are not a JSON object"), ("nonsense", "not JSON")] {
        let url = server.fresh_database()?;
        let client = raw(&url).await?;
        client.batch_execute(OLD).await.or_fail()?;
        let spoil = format!("update objects set labels = '{bad}' where id = 'a'");
        client.batch_execute(&spoil).await.or_fail()?;
        let error = PostgresStore::connect(&url).await.err().ok_or("bad labels were let in")?;
        ensure!(error.to_string().contains(told), "{error}");
        let mend = "update objects set labels = null where id = 'a'";
        client.batch_execute(mend).await.or_fail()?;
        ensure!(connect(&url).await?.get(&key("a")).await?.is_some());
    }
    Ok(())
}

async fn schemas(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let odd = Options::new().schema("Odd \"Name\"");
    migrate(&url, odd.clone()).await?;
    let first = PostgresStore::connect_with(&url, odd).await?.into_store();
    let second = PostgresStore::connect_with(&url, Options::new().schema("b")).await?.into_store();
    let mut watch = first.watch(&WatchRequest::default()).await?;
    second.commit(put("a", "second")).await?;
    first.commit(put("a", "first")).await?;
    let batch = watch.next().await.ok_or("the watch ended")??;
    ensure_eq!(batch.revision, 1);
    let object = first.get(&key("a")).await?.ok_or("gone")?;
    ensure_eq!(object.payload.as_ref(), b"first");
    Ok(())
}

async fn language(server: Server) -> Outcome {
    let name = "in_english";
    let sql =
        format!("create database {name} template template0 locale_provider icu icu_locale 'en-US'");
    server.0.psql("postgres", &sql).or_fail()?;
    let store = connect(&server.0.url_of(name)).await?;
    let ids = ["Z", "a", "B", "ä", "b", "_", "\u{10ffff}", "\u{e000}"];
    for id in ids {
        store.commit(put(id, "x")).await?;
    }
    let listed = store.list_all(&Query::new("thing").limit(3)).await?;
    let listed: Vec<&str> = listed.iter().map(|object| object.key.id.as_str()).collect();
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    ensure_eq!(listed, sorted);
    Ok::<(), Failure>(())
}
