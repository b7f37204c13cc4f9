//! A server whose wall clock is stepped: nothing ends early, nothing lives on.

use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::store::{Expect, Store, Touch};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure};
use tenure_postgres::{Options, PostgresStore};
use tenure_testkit::{Postgres, StopMode};
use tokio_postgres::Client;

use crate::common::{OrFail, Outcome, connect, key, put, raw};

const HOUR: i64 = 3600;
const SHORT: Duration = Duration::from_secs(3);

pub(crate) fn add(trials: &mut Trials) {
    trials.test("clock::a_step_forward_ends_nothing", || stepped(vec![HOUR]));
    trials.test("clock::a_step_back_prolongs_nothing", || stepped(vec![-HOUR]));
    trials.test("clock::steps_to_and_fro_change_nothing", || stepped(vec![HOUR, -2 * HOUR, HOUR]));
    trials.test("clock::a_newcomer_after_a_step_agrees", newcomer);
    trials.test("clock::a_newcomer_asks_after_a_step_forward", || first_to_speak(HOUR));
    trials.test("clock::a_newcomer_asks_after_a_step_back", || first_to_speak(-HOUR));
    trials.test("clock::a_newcomer_asks_after_a_small_step_forward", || first_to_speak(1));
    trials.test("clock::a_newcomer_asks_after_a_small_step_back", || first_to_speak(-1));
    trials.test("clock::a_newcomer_to_a_restarted_server_waits_for_the_others", restarted);
    trials.test("clock::the_silent_hold_a_newcomer_up_for_a_moment_only", silent);
    trials.test("clock::one_that_answers_is_heard_among_the_silent", among_the_silent);
}

/// Steps the clock while one object is kept alive by touches and another is left to die. On a machine
/// that stands still for a good part of a life it may rightly end; then again, with a longer one.
async fn stepped(steps: Vec<i64>) -> Outcome {
    let mut pace = Pace::start();
    let outcome = stepped_with(&steps, SHORT, &mut pace).await;
    pace.look();
    match outcome {
        Err(_) if pace.longest > SHORT / 6 => {
            stepped_with(&steps, SHORT * 5, &mut Pace::start()).await
        }
        outcome => outcome,
    }
}

/// The longest time between two looks.
struct Pace {
    last: Duration,
    longest: Duration,
}

impl Pace {
    fn start() -> Self {
        Self { last: SystemClock.uptime(), longest: Duration::ZERO }
    }

    fn look(&mut self) {
        let now = SystemClock.uptime();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
    }

    /// Sleeps for so long, and counts only what it took beyond that.
    async fn sleep(&mut self, time: Duration) {
        self.look();
        tokio::time::sleep(time).await;
        self.last += time;
        self.look();
    }
}

async fn stepped_with(steps: &[i64], life: Duration, pace: &mut Pace) -> Outcome {
    let mut server = Postgres::start_with_fake_clock().or_fail()?;
    let store = connect(&server.fresh_database().or_fail()?).await?;
    let began = SystemClock.uptime();
    pace.last = began;
    let revision = store.commit(put("kept", "x").ttl(life)).await?.revision.unwrap_or(0);
    store.commit(put("left", "x").ttl(life)).await?;
    pace.look();
    // The labels of people follow the wall clock, so this one is noticed.
    for step in steps {
        server.step_clock(*step).or_fail()?;
        pace.look();
        let touched = touch(&store, revision, life).await;
        pace.look();
        touched?;
        let left = store.get(&key("left")).await?.ok_or("the step ended an object")?;
        let remaining = left.expires_in.unwrap_or_default();
        ensure!(remaining <= life, "the step prolonged an object to {remaining:?}");
        // A commit judges by the same time.
        store.commit(put("judge", "x").expect(Expect::Any)).await?;
        ensure!(store.commit(put("left", "y").expect(Expect::Absent)).await.is_err());
        pace.sleep(Duration::from_millis(500)).await;
    }
    let mut gone_after = None;
    while SystemClock.uptime() - began < life * 2 {
        let touched = touch(&store, revision, life).await;
        pace.look();
        touched?;
        if gone_after.is_none() && store.get(&key("left")).await?.is_none() {
            gone_after = Some(SystemClock.uptime() - began);
        }
        pace.sleep(Duration::from_millis(50)).await;
    }
    let gone_after = gone_after.ok_or("the object that was left outlived twice its life")?;
    ensure!(gone_after > life - Duration::from_millis(200), "ended after {gone_after:?}");
    ensure!(gone_after < life + Duration::from_millis(1500), "ended after {gone_after:?}");
    // What was kept by touches lives exactly one life after the last.
    let kept = store.get(&key("kept")).await?.ok_or("what was touched is gone")?;
    ensure!(kept.expires_in.is_some_and(|left| left <= life), "{:?}", kept.expires_in);
    Ok(())
}

async fn touch(store: &Store, revision: u64, ttl: Duration) -> Result<(), Failure> {
    let touch = Touch { key: key("kept"), revision, ttl };
    store.touch(vec![touch]).await?.remove(0)?;
    Ok(())
}

/// Whoever connects after the step has nothing but the database to go by.
async fn newcomer() -> Outcome {
    let mut server = Postgres::start_with_fake_clock().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let store = connect(&url).await?;
    let life = Duration::from_secs(600);
    store.commit(put("a", "x").ttl(life)).await?;
    for step in [HOUR, -3 * HOUR] {
        server.step_clock(step).or_fail()?;
        // Any operation of the old hand puts the record right; the background does within a second.
        store.commit(put("b", &step.to_string())).await?;
        let newcomer = connect(&url).await?;
        let seen = newcomer.get(&key("a")).await?.ok_or("the step ended it for the newcomer")?;
        let left = seen.expires_in.unwrap_or_default();
        ensure!(left <= life && left > life - Duration::from_secs(20), "{left:?} left");
        newcomer.close().await;
    }
    Ok(())
}

/// One that does its chores once an hour, so that nothing but a question makes it look at the clock.
async fn old_hand(url: &str) -> Result<Store, Failure> {
    let options = Options::new().sweep_interval(Duration::from_secs(3600));
    Ok(PostgresStore::connect_with(url, options).await?.into_store())
}

/// Whoever connects after a step that nobody has noticed yet, and is the first to speak.
async fn first_to_speak(step: i64) -> Outcome {
    let mut server = Postgres::start_with_fake_clock().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let store = old_hand(&url).await?;
    let life = Duration::from_secs(600);
    let began = SystemClock.uptime();
    store.commit(put("lives", "x").ttl(life)).await?;
    let wrote = SystemClock.uptime();
    store.commit(put("over", "x").ttl(SHORT)).await?;
    tokio::time::sleep(SHORT + Duration::from_millis(200)).await;

    server.step_clock(step).or_fail()?;
    let newcomer = connect(&url).await?;
    let asked = SystemClock.uptime();
    let lives = newcomer.get(&key("lives")).await?.ok_or("the step ended an object")?;
    let answered = SystemClock.uptime();
    let left = lives.expires_in.unwrap_or_default();
    let slack = Duration::from_millis(150);
    let (least, most) = (life - (answered - began) - slack, life - (asked - wrote) + slack);
    ensure!(least <= left && left <= most, "{left:?} left, not {least:?} to {most:?}");
    ensure!(newcomer.get(&key("over")).await?.is_none(), "the step prolonged an object");
    ensure!(newcomer.commit(put("lives", "y").expect(Expect::Absent)).await.is_err());
    newcomer.commit(put("over", "y").expect(Expect::Absent)).await?;
    Ok(())
}

/// The server comes back with another time, and somebody new is there before those who know better.
async fn restarted() -> Outcome {
    let mut server = Postgres::start_with_fake_clock().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let store = old_hand(&url).await?;
    let life = Duration::from_secs(600);
    let revision = store.commit(put("lives", "x").ttl(life)).await?.revision.unwrap_or(0);
    server.stop(StopMode::Fast).or_fail()?;
    // Long enough that whoever listens pauses between two attempts to come back.
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.step_clock(HOUR).or_fail()?;
    server.start_again().or_fail()?;
    let newcomer = connect(&url).await?;
    newcomer.commit(put("judge", "x")).await?;
    for one in [&newcomer, &store] {
        let lives = one.get(&key("lives")).await?.ok_or("the step ended an object")?;
        ensure!(lives.revision == revision && lives.expires_in.is_some_and(|left| left <= life));
    }
    Ok(())
}

/// A session that looks like that of a process which listens, and is frozen.
async fn frozen(url: &str) -> Result<Client, Failure> {
    let client = raw(url).await?;
    let listening = "select set_config('application_name', \
                     'tenure listen ' || left(md5(current_schema()), 16), false)";
    client.batch_execute(listening).await.or_fail()?;
    Ok(client)
}

async fn silent() -> Outcome {
    let server = Postgres::start().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let _frozen = frozen(&url).await?;
    let began = SystemClock.uptime();
    let store = connect(&url).await?;
    let took = SystemClock.uptime() - began;
    ensure!(took < Duration::from_secs(6), "connecting took {took:?}");
    store.commit(put("a", "x")).await?;
    Ok(())
}

async fn among_the_silent() -> Outcome {
    let mut server = Postgres::start_with_fake_clock().or_fail()?;
    let url = server.fresh_database().or_fail()?;
    let store = old_hand(&url).await?;
    store.commit(put("lives", "x").ttl(Duration::from_secs(600))).await?;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(frozen(&url).await?);
    }
    server.step_clock(HOUR).or_fail()?;
    let newcomer = connect(&url).await?;
    ensure!(newcomer.get(&key("lives")).await?.is_some(), "the step ended an object");
    Ok(())
}
