//! What befalls the processes, and when.

use std::sync::Arc;
use std::time::Duration;

use crate::dice::Dice;
use crate::world::World;

/// Lets one thing after another go wrong until the time is over. Several may overlap.
pub async fn strike(world: Arc<World>, seed: u64) {
    let dice = Dice::new(seed, "chaos");
    let end = world.observer.clock.now() + Duration::from_secs(world.plan.seconds);
    let Some(every) = world.plan.chaos_every else {
        return world.observer.clock.sleep_until(end).await;
    };
    let mut running = tokio::task::JoinSet::new();
    loop {
        let pause = dice.millis(50, every);
        if world.observer.clock.now() + pause >= end {
            break;
        }
        tokio::time::sleep(pause).await;
        let number = dice.below(world.plan.processes);
        let (short, long) = (dice.spread(20, 4_000), dice.spread(50, 15_000));
        let (hangs, breaks) = (dice.chance(500), dice.chance(500));
        let by_ms = i64::try_from(dice.below(20_000_000)).unwrap_or(0) - 10_000_000;
        let here = Arc::clone(&world);
        match dice.below(12) {
            0..=3 => drop(running.spawn(async move { here.freeze(number, long).await })),
            4..=5 => drop(running.spawn(async move {
                if let Err(error) = here.kill(number, short).await {
                    here.observer.note("sim", &format!("a process cannot be started: {error}"));
                }
            })),
            6..=7 => drop(running.spawn(async move { here.partition(number, long, breaks).await })),
            8 => drop(running.spawn(async move { here.outage(short, hangs, breaks).await })),
            9 => world.break_watch(number),
            _ => world.step_wall(number, by_ms),
        }
    }
    world.observer.clock.sleep_until(end).await;
    while running.join_next().await.is_some() {}
}
