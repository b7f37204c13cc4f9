//! A server that is not the one it was.

use tenure::store::Query;
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure};
use tenure_testkit::Postgres;

use crate::common::{OrFail, Outcome, connect, eventually, key, put};

pub(crate) fn add(trials: &mut Trials) {
    trials.test("elsewhere::a_standby_is_not_read_from", standby);
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
