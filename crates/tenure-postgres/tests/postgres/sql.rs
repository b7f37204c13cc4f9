//! SQL of the caller's in a commit: what is Postgres' own about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tenure::Error;
use tenure::store::{Attachment, Commit, Expect, Store};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_postgres::{Options, PostgresStore, sql};
use tokio::sync::{Notify, Semaphore};
use tokio_postgres::Client;

use crate::common::{OrFail, Outcome, Server, connect, eventually, key, put, raw};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("sql::slow_sql_holds_up_nobody", move || slow(server));
    trials.test("sql::a_few_run_at_the_same_time", move || few(server));
    trials.test("sql::waiting_for_locks_deadlocks_with_nobody", move || locks(server));
    trials.test("sql::a_deadlock_of_its_own_can_be_tried_again", move || deadlock(server));
    trials.test("sql::endless_sql_is_cut_off", move || endless(server));
    trials.test("sql::it_cannot_end_its_transaction_unnoticed", move || ended(server));
    trials.test("sql::the_stores_tables_and_settings_are_safe", move || safe(server));
    trials.test("sql::a_deferred_constraint_undoes_the_commit", move || deferred(server));
    trials.test("sql::a_connection_lost_at_the_commit_is_unknown", move || unknown(server));
    trials.test("sql::it_survives_the_loss_of_idle_sessions", move || idle_lost(server));
    trials.test("sql::a_dropped_commit_leaves_nothing", move || dropped(server));
    trials.test("sql::a_schema_of_the_stores_is_its_own", move || schema(server));
    trials.test("sql::a_closed_store_refuses", move || closed(server));
}

/// A store, and somebody else's connection with a table of rows 1 to 9, all zero.
async fn set_up(server: Server) -> Result<(Store, Client, String), Failure> {
    let url = server.fresh_database()?;
    let store = connect(&url).await?;
    let client = raw(&url).await?;
    let make = "create table own (id int primary key, n int not null); \
                insert into own select g, 0 from generate_series(1, 9) g";
    client.batch_execute(make).await.or_fail()?;
    Ok((store, client, url))
}

fn batch(text: &'static str) -> Attachment {
    sql(move |client| Box::pin(async move { Ok(client.batch_execute(text).await?) }))
}

fn with(id: &str, attachment: Attachment) -> Commit {
    Commit::from(put(id, "v")).attach(attachment)
}

async fn total(client: &Client) -> Result<i64, Failure> {
    let row = client.query_one("select sum(n) from own", &[]).await.or_fail()?;
    Ok(row.get(0))
}

/// The error, and proof that neither the object nor the table changed.
async fn undone(store: &Store, client: &Client, commit: Commit) -> Result<Error, Failure> {
    let before = total(client).await?;
    let written = commit.writes.first().map(|write| write.key().clone());
    let error = match store.commit(commit).await {
        Ok(done) => return Err(format!("it went through: {done:?}").into()),
        Err(error) => error,
    };
    ensure_eq!(total(client).await?, before, "after {error}");
    if let Some(key) = written {
        ensure_eq!(store.get(&key).await?, None, "after {error}");
    }
    Ok(error)
}

async fn slow(server: Server) -> Outcome {
    let (store, client, _) = set_up(server).await?;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let attachment = {
        let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
        sql(move |client| {
            let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
            Box::pin(async move {
                client.batch_execute("update own set n = 1 where id = 1").await?;
                begun.notify_one();
                go_on.notified().await;
                Ok(())
            })
        })
    };
    let waiting = {
        let store = store.clone();
        tokio::spawn(async move { store.commit(with("slow", attachment)).await })
    };
    begun.notified().await;
    for n in 0..20 {
        store.commit(put(format!("quick-{n}"), "v")).await?;
        store
            .commit(with(&format!("other-{n}"), batch("update own set n = n where id = 2")))
            .await?;
    }
    let last = store.commit(put("last", "v")).await?.revision;
    ensure!(!waiting.is_finished(), "the slow one was to wait");
    go_on.notify_one();
    let done = waiting.await.or_fail()??;
    // Its place is where it was committed, not where it began.
    ensure!(done.revision > last, "{done:?} after {last:?}");
    ensure_eq!(total(&client).await?, 1);
    Ok(())
}

async fn few(server: Server) -> Outcome {
    let (store, _, _) = set_up(server).await?;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let gate = Arc::new(Semaphore::new(0));
    let commits = (0..20).map(|n| {
        let shared = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&gate));
        let attachment = sql(move |client| {
            let (running, most, gate) = shared.clone();
            Box::pin(async move {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                let _ = gate.acquire().await;
                client.batch_execute("select 1").await?;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        });
        let store = store.clone();
        tokio::spawn(async move { store.commit(with(&n.to_string(), attachment)).await })
    });
    let commits: Vec<_> = commits.collect();
    eventually("four are under way", || async { Ok(running.load(Ordering::SeqCst) == 4) }).await?;
    // Time enough for a fifth, if there were one.
    for n in 0..50 {
        store.commit(put("meanwhile", &n.to_string())).await?;
    }
    gate.add_permits(1_000);
    for done in join_all(commits).await {
        done.or_fail()??;
    }
    ensure_eq!(most.load(Ordering::SeqCst), 4, "at the same time");
    Ok(())
}

async fn locks(server: Server) -> Outcome {
    let (store, client, url) = set_up(server).await?;
    let other = connect(&url).await?;
    // Everybody wants the same row and the counter; plain commits in two processes want the counter.
    let hot = "update own set n = n + 1 where id = 1";
    let commits = (0..40).map(|n| {
        let store = if n % 2 == 0 { &store } else { &other };
        let commit = put("hot", &n.to_string());
        store.commit(match n % 4 {
            0 | 1 => Commit::from(commit).attach(batch(hot)),
            _ => commit.into(),
        })
    });
    for done in join_all(commits).await {
        done?;
    }
    ensure_eq!(total(&client).await?, 20);
    ensure_eq!(store.get(&key("hot")).await?.map(|object| object.version), Some(40));
    // A stranger who sits on the row makes those wait that want it, and nobody else.
    client.batch_execute("begin; update own set n = n where id = 1").await.or_fail()?;
    let waiting = {
        let store = store.clone();
        tokio::spawn(async move { store.commit(with("waits", batch(hot))).await })
    };
    let watcher = raw(&url).await?;
    let blocked = "select count(*) from pg_stat_activity \
                   where application_name = 'tenure sql' and wait_event_type = 'Lock'";
    eventually("it waits for the row", || async {
        Ok(watcher.query_one(blocked, &[]).await.or_fail()?.get::<_, i64>(0) == 1)
    })
    .await?;
    store.commit(put("free", "v")).await?;
    other.commit(put("free", "w")).await?;
    client.batch_execute("rollback").await.or_fail()?;
    waiting.await.or_fail()??;
    Ok(())
}

async fn deadlock(server: Server) -> Outcome {
    let (store, client, _) = set_up(server).await?;
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let crosswise = |first: i32, second: i32| {
        let both = Arc::clone(&both);
        sql(move |client| {
            let both = Arc::clone(&both);
            Box::pin(async move {
                let add = "update own set n = n + 1 where id = $1";
                client.execute(add, &[&first]).await?;
                both.wait().await;
                client.execute(add, &[&second]).await?;
                Ok(())
            })
        })
    };
    let (one, two) = futures::future::join(
        store.commit(with("one", crosswise(1, 2))),
        store.commit(with("two", crosswise(2, 1))),
    )
    .await;
    let (lost, error) = match (one, two) {
        (Ok(_), Err(error)) => ("two", error),
        (Err(error), Ok(_)) => ("one", error),
        other => return Err(format!("one of them was to win: {other:?}").into()),
    };
    ensure!(matches!(error, Error::Unavailable { .. }), "{error}");
    ensure!(error.to_string().contains("40P01"), "{error}");
    ensure_eq!(store.get(&key(lost)).await?, None);
    ensure_eq!(total(&client).await?, 2, "what the winner added");
    Ok(())
}

async fn endless(server: Server) -> Outcome {
    let (_, client, url) = set_up(server).await?;
    let options = Options::new().sql_timeout(Duration::from_millis(200));
    let store = PostgresStore::connect_with(&url, options).await?.into_store();
    let sleep = "update own set n = 7 where id = 1; select pg_sleep(60)";
    let asleep = sql(|client| {
        Box::pin(async move {
            client.batch_execute("update own set n = 7 where id = 1").await?;
            std::future::pending().await
        })
    });
    for attachment in [batch(sleep), asleep] {
        let error = undone(&store, &client, with("x", attachment)).await?;
        ensure!(matches!(error, Error::Unavailable { .. }), "{error}");
        ensure!(error.to_string().contains("sql_timeout"), "{error}");
    }
    // Its locks are gone with it.
    client.batch_execute("set lock_timeout = '5s'; update own set n = 0").await.or_fail()?;
    store.commit(with("y", batch("update own set n = 1 where id = 1"))).await?;
    Ok(())
}

async fn ended(server: Server) -> Outcome {
    let (store, client, _) = set_up(server).await?;
    for text in ["rollback", "rollback; begin", "commit", "commit; begin"] {
        let error = undone(&store, &client, with("x", batch(text))).await?;
        ensure!(matches!(error, Error::Invalid { .. }), "{text}: {error}");
        ensure!(error.to_string().contains("ended the transaction"), "{text}: {error}");
    }
    // A failure that is not passed on.
    let hushed = sql(|client| {
        Box::pin(async move {
            client.batch_execute("update own set n = 1").await?;
            let _ = client.batch_execute("select * from nowhere").await;
            Ok(())
        })
    });
    let error = undone(&store, &client, with("x", hushed)).await?;
    ensure!(error.to_string().contains("had failed"), "{error}");
    let text = "savepoint a; update own set n = 5 where id = 1; rollback to a; savepoint b; \
                update own set n = 1 where id = 1";
    store.commit(with("x", batch(text))).await?;
    ensure_eq!(total(&client).await?, 1);
    Ok(())
}

async fn safe(server: Server) -> Outcome {
    let (store, client, _) = set_up(server).await?;
    store.commit(put("there", "v").ttl(Duration::from_secs(600))).await?;
    for text in ["delete from objects", "update objects set payload = ''", "truncate objects"] {
        let error = undone(&store, &client, with("x", batch(text))).await?;
        ensure!(error.to_string().contains("may not write to objects"), "{text}: {error}");
    }
    let meddling = "set search_path = pg_catalog; set synchronous_commit = off; \
                    set default_transaction_read_only = on; select pg_advisory_lock(1); \
                    create temp table objects (like public.objects); \
                    create temp table tenure_meta (like public.tenure_meta); \
                    update public.own set n = 1 where id = 1";
    let done = store.commit(with("meddled", batch(meddling))).await?;
    ensure!(done.revision.is_some(), "{done:?}");
    let found = client.query("select 1 from objects where id = 'meddled'", &[]).await.or_fail()?;
    ensure_eq!(found.len(), 1, "where the object went");
    // The next one on that session finds it as it should be.
    eventually("the session is clean", || async {
        let sql = "select pg_try_advisory_xact_lock(1)";
        Ok(client.query_one(sql, &[]).await.or_fail()?.get(0))
    })
    .await?;
    let looks = sql(|client| {
        Box::pin(async move {
            let sql = "select current_setting('search_path'), to_regclass('pg_temp.objects')::text, \
                       current_setting('enable_seqscan')";
            let row = client.query_one(sql, &[]).await?;
            let (path, temp): (String, Option<String>) = (row.get(0), row.get(1));
            let (as_it_was, scans) = (path.contains("public"), row.get::<_, String>(2));
            match (as_it_was, temp, scans.as_str()) {
                (true, None, "on") => Ok(()),
                found => Err(Error::invalid("session", format!("{path}: {found:?}")).into()),
            }
        })
    });
    for n in 0..6 {
        store.commit(with(&format!("looks-{n}"), looks.clone())).await?;
    }
    Ok(())
}

async fn deferred(server: Server) -> Outcome {
    let (store, client, _) = set_up(server).await?;
    let make = "create table child (id int references own deferrable initially deferred)";
    client.batch_execute(make).await.or_fail()?;
    let text = "update own set n = 1; insert into child values (77)";
    let error = undone(&store, &client, with("x", batch(text))).await?;
    ensure!(matches!(error, Error::Invalid { .. }), "{error}");
    ensure!(error.to_string().contains("child"), "{error}");
    Ok(())
}

async fn unknown(server: Server) -> Outcome {
    let (store, client, _) = set_up(server).await?;
    // Cut off by the server in the very moment of the commit.
    let make = "create function cut() returns trigger language plpgsql as \
                'begin perform pg_terminate_backend(pg_backend_pid()); return null; end'; \
                create constraint trigger cut after update on own \
                deferrable initially deferred for each row execute function cut()";
    client.batch_execute(make).await.or_fail()?;
    let error = undone(&store, &client, with("x", batch("update own set n = 1"))).await?;
    ensure!(matches!(error, Error::Unknown { .. }), "{error}");
    store.commit(with("y", batch("select 1"))).await?;
    Ok(())
}

async fn idle_lost(server: Server) -> Outcome {
    let (store, client, _) = set_up(server).await?;
    for n in 0..3 {
        let add = batch("update own set n = n + 1 where id = 1");
        store.commit(with(&n.to_string(), add)).await?;
        let cut = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where application_name = 'tenure sql' and datname = current_database()";
        client.batch_execute(cut).await.or_fail()?;
    }
    ensure_eq!(total(&client).await?, 3);
    Ok(())
}

async fn dropped(server: Server) -> Outcome {
    let (store, client, _) = set_up(server).await?;
    let begun = Arc::new(Notify::new());
    let attachment = {
        let begun = Arc::clone(&begun);
        sql(move |client| {
            let begun = Arc::clone(&begun);
            Box::pin(async move {
                client.batch_execute("update own set n = 1").await?;
                begun.notify_one();
                std::future::pending().await
            })
        })
    };
    let commit = tokio::spawn({
        let store = store.clone();
        async move { store.commit(with("x", attachment)).await }
    });
    begun.notified().await;
    commit.abort();
    // Its locks are free at once, not only after its time is up.
    let patient = "set lock_timeout = '3s'; update own set n = 0";
    client.batch_execute(patient).await.or_fail()?;
    ensure_eq!(store.get(&key("x")).await?, None);
    ensure_eq!(store.commit(with("y", batch("select 1"))).await?.revision, Some(1));
    Ok(())
}

async fn schema(server: Server) -> Outcome {
    let (public, client, url) = set_up(server).await?;
    let options = Options::new().schema("the \"store\"");
    let store = PostgresStore::connect_with(&url, options).await?.into_store();
    // Names mean to the caller's SQL what they mean on any connection of the caller's.
    for n in 1..=3 {
        let commit = with("x", batch("update own set n = n + 1 where id = 1"));
        let commit = commit.put(put("y", &n.to_string()));
        let done = store.commit(commit).await?;
        ensure_eq!(done.revision, Some(n));
    }
    ensure_eq!(total(&client).await?, 3);
    ensure_eq!(public.get(&key("x")).await?, None);
    ensure!(store.get(&key("x")).await?.is_some());
    Ok(())
}

async fn closed(server: Server) -> Outcome {
    let (store, client, _) = set_up(server).await?;
    let fence = Commit::new().check(key("x"), Expect::Absent);
    store.commit(fence.attach(batch("update own set n = 1 where id = 1"))).await?;
    store.close().await;
    let error = match store.commit(with("x", batch("update own set n = 2"))).await {
        Ok(_) => return Err("a closed store took a commit".into()),
        Err(error) => error,
    };
    ensure!(matches!(error, Error::Unavailable { .. }), "{error}");
    ensure_eq!(total(&client).await?, 1);
    Ok(())
}
