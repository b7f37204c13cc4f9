//! CPU time of the clients' process and of the server's: what a cycle costs, however busy the machine.

use anyhow::Context as _;

/// Of a tick, as the system counts them.
const TICK_MICROS: f64 = 10_000.0;

/// Microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Spent {
    pub(crate) clients: f64,
    /// Not a number for a server whose process we do not know.
    pub(crate) server: f64,
}

impl Spent {
    pub(crate) fn until_now(server: Option<u32>) -> anyhow::Result<Self> {
        let server = match server {
            Some(id) => spent(&format!("/proc/{id}/stat"))?,
            None => f64::NAN,
        };
        Ok(Self { clients: spent("/proc/self/stat")?, server })
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self { clients: self.clients - before.clients, server: self.server - before.server }
    }

    pub(crate) fn per(self, cycles: f64) -> Self {
        Self { clients: self.clients / cycles, server: self.server / cycles }
    }
}

/// In the program and in the kernel on its behalf.
fn spent(file: &str) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
    // The name, in parentheses, may contain anything; the numbers come after it.
    let (_, numbers) = stat.rsplit_once(')').context("a process's numbers")?;
    let ticks = numbers.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? * TICK_MICROS)
}
