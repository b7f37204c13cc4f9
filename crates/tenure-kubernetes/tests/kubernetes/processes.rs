//! Separate processes that contend for one scope, and die while they hold it.
//!
//! Without commits that are fenced, what can be shown is that no two believe to hold at once, and that
//! tokens rise: each process tells when it began and when it stopped on the host's steady clock.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure::Error;
use tenure::clock::{Clock, SystemClock};
use tenure::random::{SystemRandom, below};
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;

use crate::common::{OrFail, Outcome, connect, coordinator, ensure, scope, standin, terms, url};

/// Makes this binary take turns at holding until it has had enough of them.
pub(crate) const CONTEND: &str = "--contend";
const PROCESSES: u32 = 4;
const TURNS: u32 = 6;
const SCOPE: &str = "contended/by-processes";

pub(crate) fn add(trials: &mut Trials, cluster: Option<String>) {
    trials.test("kubernetes::processes_hold_in_turn", || async {
        let server = standin();
        contention(&url(&server.kubeconfig(), "default")).await
    });
    if let Some(url) = cluster {
        trials
            .test("cluster::processes_hold_in_turn", move || async move { contention(&url).await });
    }
}

/// One process: a line for each tenure, `token began ended` in microseconds of uptime. In about one of
/// six turns it dies instead of releasing.
pub(crate) fn contend(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map(|runtime| runtime.block_on(take_turns(url)));
    if let Ok(Err(failure)) = done {
        println!("failed {failure}");
    }
}

async fn take_turns(url: &str) -> Outcome {
    let coordinator = coordinator(&connect(url).await?, "p")?;
    for turn in 0..TURNS {
        let held = coordinator.acquire(&scope(SCOPE)?, &terms(3).wait_forever()).await?;
        let began = SystemClock.uptime();
        let work = Duration::from_millis(below(&SystemRandom, 60));
        tokio::time::sleep(work).await;
        if !held.is_valid() {
            continue;
        }
        let ended = SystemClock.uptime();
        let line = format!("held {} {} {}", held.token(), began.as_micros(), ended.as_micros());
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).or_fail()?;
        drop(out);
        if turn > 1 && below(&SystemRandom, 6) == 0 {
            std::process::exit(3);
        }
        match held.release().await {
            // On a busy machine it may have ended meanwhile; what was told is true all the same.
            Err(Error::Lost { .. }) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn contention(url: &str) -> Outcome {
    let program = std::env::current_exe().or_fail()?;
    let running: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut command = Command::new(&program);
            command.args([CONTEND, url]).stdin(Stdio::null()).stdout(Stdio::piped());
            let url = url.to_owned();
            tokio::task::spawn_blocking(move || {
                command.output().map_err(|error| format!("{error} on {url}"))
            })
        })
        .collect();
    let mut tenures: Vec<(u64, u128, u128)> = Vec::new();
    for process in running {
        let output = process.await?.or_fail()?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            tenures.push(parse(line).ok_or_else(|| Failure::new(line))?);
        }
    }
    tenures.sort_by_key(|(_, began, _)| *began);
    ensure!(tenures.len() >= (PROCESSES * 2) as usize, "only {} tenures", tenures.len());
    for pair in tenures.windows(2) {
        let ((first, _, ended), (second, began, _)) = (pair[0], pair[1]);
        ensure!(ended <= began, "token {second} began before {first} ended: {pair:?}");
        ensure!(first < second, "token {second} after {first}");
    }
    eprintln!("{} tenures of {PROCESSES} processes, one after the other", tenures.len());
    Ok(())
}

fn parse(line: &str) -> Option<(u64, u128, u128)> {
    let mut words = line.strip_prefix("held ")?.split(' ');
    let token = words.next()?.parse().ok()?;
    Some((token, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}
