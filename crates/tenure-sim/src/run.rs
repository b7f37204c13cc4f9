//! One run: a seed in, a verdict and a history out.

use std::sync::{Arc, Once};
use std::time::Duration;

use crate::chaos;
use crate::gated::SIMULATED;
use crate::history::{Guarantee, Violation};
use crate::invariants::early;
use crate::world::{Settings, World};

/// Without any fault, everybody gets this long to come to rest.
const PEACE: Duration = Duration::from_secs(15);
/// Tasks that were told to stop get this long.
const REST: Duration = Duration::from_secs(35);

/// How a run went.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What was wrong, if anything.
    pub violation: Option<Violation>,
    /// Everything that happened, one line each.
    pub history: Vec<String>,
    /// Calls to the store.
    pub calls: u64,
    /// Leases that somebody was handed.
    pub granted: u64,
    /// Tenures that were tidied up after.
    pub reaped: usize,
    /// Losses seen, by reason.
    pub losses: Vec<(&'static str, u64)>,
}

/// Runs a seed.
pub fn run(seed: u64, settings: Settings) -> Outcome {
    quiet_panics();
    tenure::flaws::plant(settings.flaw);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without any threads can be had");
    runtime.block_on(live(seed, settings))
}

/// Runs a seed, and every tenth one again with all wall clocks right: nothing may differ.
pub fn check(seed: u64, settings: Settings) -> Outcome {
    let mut outcome = run(seed, settings);
    if outcome.violation.is_none() && seed.is_multiple_of(10) {
        let twin = run(seed, Settings { true_walls: true, ..settings });
        outcome.violation = early::same(&outcome.history, &twin.history).err();
    }
    outcome
}

async fn live(seed: u64, settings: Settings) -> Outcome {
    let world = World::start(seed, settings).await.expect("a world without faults starts");
    let ticking = tokio::spawn(tick(Arc::clone(&world)));
    tokio::select! {
        biased;
        () = world.observer.violated() => {}
        () = story(&world, seed) => {}
    }
    ticking.abort();
    world.end();
    // Every task of every process sees that it is dead, and goes.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let calls = world.weather.calls.load(std::sync::atomic::Ordering::Relaxed);
    let mut known = world.observer.known();
    Outcome {
        seed,
        violation: known.violation.take(),
        history: known.history.lines().to_vec(),
        calls,
        granted: known.granted,
        reaped: known.reaped.count(),
        losses: known.losses.iter().map(|(code, count)| (*code, *count)).collect(),
    }
}

/// Trouble, then peace, then rest; then a look whether anything is stuck.
async fn story(world: &Arc<World>, seed: u64) {
    chaos::strike(Arc::clone(world), seed).await;
    world.clear_up();
    tokio::time::sleep(PEACE).await;
    world.wind_down();
    tokio::time::sleep(REST).await;
    world.check_counts();
    if let Err(error) = world.check_nothing_is_stuck().await {
        let message = format!("after all trouble is over, {error}");
        world.observer.judge(Err(Violation::new(Guarantee::G8, message)));
    }
}

async fn tick(world: Arc<World>) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        world.observer.tick();
        world.check_counts();
    }
}

/// Loops that panic on purpose do not clutter the output.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>();
            if !text.is_some_and(|text| text.starts_with(SIMULATED)) {
                usual(info);
            }
        }));
    });
}
