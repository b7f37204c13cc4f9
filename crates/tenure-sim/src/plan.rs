//! What a seed means: how many processes, what they do, what goes wrong.

use crate::dice::Dice;

/// How often calls go wrong, in a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The request or the reply is lost.
    pub lost: u64,
    /// The request or the reply is late.
    pub late: u64,
    /// The request arrives twice.
    pub twice: u64,
}

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many processes there are.
    pub processes: u64,
    /// How many scopes they compete for.
    pub scopes: u64,
    /// How often calls go wrong.
    pub faults: Faults,
    /// How many milliseconds pass at most between one misfortune and the next; `None` for none.
    pub chaos_every: Option<u64>,
    /// For how many simulated seconds things go wrong.
    pub seconds: u64,
    /// The longest life of a lease, in milliseconds.
    pub ttl_max: u64,
    /// How long a store call may take, in milliseconds.
    pub timeout: u64,
    /// Tasks of each process.
    pub tasks: u64,
    /// Several tasks of one process wait for one scope.
    pub crowd: bool,
    /// Slots, reading and writing, several scopes at once.
    pub varied: bool,
    /// Gates.
    pub gates: bool,
    /// Holders are patient: long tenures, so that others wait in silence.
    pub slow: bool,
    /// The store takes one object a commit, as NATS and Kubernetes do: no line, no fence, no notes.
    pub single: bool,
    /// Some leases leave something to reap, and everybody reaps.
    pub reaps: bool,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let dice = Dice::new(seed, "plan");
        let calm = dice.chance(150);
        let faults = match dice.below(4) {
            _ if calm => Faults::default(),
            0 => Faults::default(),
            1 => Faults { lost: 5, late: 5, twice: 5 },
            2 => Faults { lost: 30, late: 20, twice: 20 },
            _ => Faults { lost: 80, late: 60, twice: 40 },
        };
        Self {
            processes: dice.between(2, 5),
            scopes: dice.between(1, 3),
            faults,
            chaos_every: (!calm).then(|| *dice.pick(&[2_000, 5_000, 10_000])),
            seconds: 45,
            ttl_max: *dice.pick(&[2_000, 4_000, 8_000]),
            timeout: *dice.pick(&[3_000, 10_000]),
            tasks: dice.between(1, 3),
            crowd: dice.chance(300),
            varied: dice.chance(500),
            gates: dice.chance(400),
            slow: dice.chance(300),
            single: dice.chance(250),
            reaps: dice.chance(400),
        }
    }
}
