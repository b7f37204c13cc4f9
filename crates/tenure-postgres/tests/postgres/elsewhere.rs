//! A server that is not the one it was: a standby, a promoted one that lost the last commits, one restored
//! from a backup.

use std::time::Duration;

use tenure::Error;
use tenure::store::{Query, Store, Watch, WatchRequest};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tenure_postgres::{Options, PostgresStore};
use tenure_testkit::Postgres;
use tokio_postgres::Client;

use crate::common::{OrFail, Outcome, Server, connect, eventually, key, put, raw};

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("elsewhere::a_standby_is_not_read_from", standby);
    trials
        .test("elsewhere::a_watch_of_what_a_server_lost_says_so_and_another_goes_on", move || {
            lost(server)
        });
    trials.test("elsewhere::a_watch_notices_revisions_that_were_drawn_again", move || {
        drawn_again(server)
    });
    trials.test("elsewhere::a_commit_is_told_only_behind_what_was_told", move || own(server));
}

async fn standby() -> Outcome {
    let mut server = Postgres::start().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let store = connect(&url).await?;
    store.commit(put("a", "x")).await?;
    ensure!(store.get(&key("a")).await?.is_some());
    server.restart_as_standby().or_fail()?;
    // What it has may be long out of date, whatever sessions are opened again.
    let is_told = async || -> Result<bool, Failure> {
        let (got, listed) =
            (store.get(&key("a")).await, store.list(&Query::new("thing")).await.map(drop));
        let got = got.map(|found| found.is_some());
        ensure!(got.is_err() && listed.is_err(), "it was read: {got:?}, {listed:?}");
        Ok(format!("{got:?}").contains("the server is a standby"))
    };
    for _ in 0..8 {
        is_told().await?;
    }
    eventually("the error says what is the matter", is_told).await?;
    let late = connect(&url).await;
    ensure!(format!("{late:?}").contains("the server is a standby"), "{late:?}");
    server.promote().or_fail()?;
    eventually("it is read again", || async {
        Ok(store.get(&key("a")).await.is_ok_and(|found| found.is_some()))
    })
    .await?;
    store.commit(put("a", "y")).await?;
    Ok(())
}

/// Somebody who puts a backup back.
async fn operator(url: &str) -> Result<Client, Failure> {
    let client = raw(url).await?;
    client.batch_execute("set tenure.writer = '1'").await.or_fail()?;
    Ok(client)
}

/// Everything is as it was at this revision.
async fn restore(operator: &Client, revision: u64) -> Outcome {
    let sql = format!(
        "begin; update tenure_meta set revision = {revision};
         delete from tenure_events where last_revision > {revision};
         delete from objects where revision > {revision}; commit"
    );
    operator.batch_execute(&sql).await.or_fail()?;
    Ok(())
}

/// Writes until the store is at this revision.
async fn write_up_to(store: &Store, revision: u64) -> Outcome {
    let page = store.list(&Query::new("thing")).await?;
    for n in page.revision..revision {
        store.commit(put(format!("{n}"), "x")).await?;
    }
    Ok(())
}

/// A store that looks at history so seldom that only what it is told counts.
async fn told(url: &str) -> Result<Store, Failure> {
    let options = Options::new().poll_interval(Duration::from_secs(3600));
    Ok(PostgresStore::connect_with(url, options).await?.into_store())
}

async fn heard(watch: &mut Watch) -> Result<tenure::Result<u64>, Failure> {
    let heard = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.or_fail()?;
    Ok(heard.ok_or("the watch ended")?.map(|batch| batch.revision))
}

/// The watch has heard everything up to `revision`, and is told that it is no longer so.
async fn ends(watch: &mut Watch, revision: u64) -> Outcome {
    let end = heard(watch).await?;
    let told = matches!(end, Err(Error::Compacted { requested, .. }) if requested == revision);
    ensure!(told, "{end:?}");
    ensure!(watch.next().await.is_none());
    Ok(())
}

async fn lost(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (writer, operator) = (connect(&url).await?, operator(&url).await?);
    let quick = Options::new().poll_interval(Duration::from_millis(20));
    let observer = PostgresStore::connect_with(&url, quick).await?.into_store();
    write_up_to(&writer, 5).await?;
    let mut watch = observer.watch(&WatchRequest::default()).await?;
    write_up_to(&writer, 6).await?;
    ensure_eq!(heard(&mut watch).await??, 6);
    restore(&operator, 3).await?;
    ends(&mut watch, 6).await?;
    // Whoever goes on from where it was is told, too; whoever lists again is not.
    let beyond = observer.watch(&WatchRequest::default().after(6)).await;
    ensure!(matches!(beyond, Err(Error::Invalid { .. })), "{beyond:?}");
    let mut another = observer.watch(&WatchRequest::default()).await?;
    ensure_eq!(another.start(), 3);
    write_up_to(&writer, 4).await?;
    ensure_eq!(heard(&mut another).await??, 4);
    Ok(())
}

/// By the time somebody looks, as many commits are there as there had been.
async fn drawn_again(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (writer, operator) = (connect(&url).await?, operator(&url).await?);
    let observer = told(&url).await?;
    write_up_to(&writer, 5).await?;
    let mut watch = observer.watch(&WatchRequest::default()).await?;
    write_up_to(&writer, 6).await?;
    ensure_eq!(heard(&mut watch).await??, 6);
    restore(&operator, 3).await?;
    write_up_to(&writer, 7).await?;
    ends(&mut watch, 6).await?;
    let mut another = observer.watch(&WatchRequest::default().after(7)).await?;
    write_up_to(&writer, 8).await?;
    ensure_eq!(heard(&mut another).await??, 8);
    Ok(())
}

/// The same for a process that tells its watchers of its own commits as it makes them, after its
/// connection was lost.
async fn own(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (other, operator) = (connect(&url).await?, operator(&url).await?);
    let store = told(&url).await?;
    let mut watch = store.watch(&WatchRequest::default()).await?;
    for revision in 1..=6 {
        write_up_to(&store, revision).await?;
        ensure_eq!(heard(&mut watch).await??, revision);
    }
    let cut = "select pg_terminate_backend(pid, 5000) from pg_stat_activity \
               where application_name = 'tenure commit' and datname = current_database()";
    operator.execute(cut, &[]).await.or_fail()?;
    restore(&operator, 3).await?;
    write_up_to(&other, 6).await?;
    let done = eventually("the store commits", || async {
        // What is not known to be done, because the connection is lost, is done again.
        Ok(store.commit(put("mine", "x")).await.is_ok())
    });
    done.await?;
    ends(&mut watch, 6).await?;
    Ok(())
}
