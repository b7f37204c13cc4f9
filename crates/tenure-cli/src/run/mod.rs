//! `tenure run`: a command that runs only while a lease is held.
//!
//! It starts when the lease is held, and it is gone before the lease can be somebody else's: stopped
//! by us, or by its [`guard`] if we cannot. The lease is released after the command, and all that it
//! started, has ended; or handed over then, if somebody asked for that.

mod child;
mod family;
mod guard;
mod leaving;
mod schedule;
mod signals;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;
use tenure::clock::{Clock as _, SystemClock};
use tenure::lease::{Coordinator, HandOverRequest, Lease, Loss, Namespace, Scope, Terms};
use tenure::{Error, Result};
use tokio::time::sleep;

pub(crate) use self::child::become_command;
use self::child::{Guarded, code};
pub(crate) use self::guard::Arguments as GuardArguments;
use self::leaving::{Ended, Leaving};
use self::schedule::{Act, Pace, Schedule};
use self::signals::{Signals, code_of};
use crate::duration::parse_duration;
use crate::output::say;
use crate::stores::StoreArgument;
use crate::{progress, table};

/// Who waits longer than this is told what for.
const TELL_AFTER: Duration = Duration::from_millis(300);
/// How often the deadline is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Hold a lease around any command.
///
/// The command starts when the lease is held. It finds TENURE_SCOPE, TENURE_TOKEN and TENURE_DEADLINE
/// (milliseconds since 1970, as of its start; renewals move it on) in its environment, gets the
/// signals that tenure gets, and its exit code is passed on. If the lease is lost it is stopped, first
/// with TERM, then with KILL, before anybody else can hold the lease, even if the store cannot be
/// reached or tenure itself is frozen; and with it all that it started, daemons and other sessions
/// included. Its standard input is empty if it would be a terminal.
///
/// `tenure lease hand-over` makes it stop the command in the same way, while the lease is still held, and
/// pass the lease on; the exit code is the command's then, too.
#[derive(clap::Args)]
#[command(override_usage = "tenure run [OPTIONS] <SCOPE> -- <COMMAND>...")]
pub(crate) struct Arguments {
    /// What to hold, for instance `billing.nightly/close`; with --slots a group, for instance
    /// `search.indexer`.
    scope: String,
    /// Take one of so many slots of a group. The first one says how many there are; `tenure slots resize`
    /// changes it.
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// The life of the lease, for instance 10s, 5m or 500ms: how long it stays taken after a crash.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    ttl: Duration,
    /// Wait at most this long, 0 for not at all; without it as long as it takes.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// Between TERM and KILL if the lease is lost [default: a quarter of the life, at most 10s].
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    grace: Option<Duration>,
    /// The name others see [default: HOSTNAME, or the host's].
    #[arg(long, env = "TENURE_NAME")]
    name: Option<String>,
    /// Something to tell everybody about the holder, for instance address=10.0.0.7:80; may be given
    /// several times.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Say nothing but errors.
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
    #[command(flatten)]
    store: StoreArgument,
}

impl Arguments {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let pace = Pace::new(self.ttl, self.grace).ok_or_else(|| {
            let grace = table::duration(self.grace.unwrap_or_default());
            let reason = "it is more than half the life; shorten it or give a longer --ttl";
            Error::invalid(format!("--grace {grace}"), reason)
        })?;
        let what = self.what()?;
        let terms = self.terms()?;
        if self.store.is_private() {
            self.say("nobody else sees what is in memory:, so this keeps nobody out; give another --store");
        }
        let mut signals = Signals::new()?;
        // A task of its own: some stores are opened by calls that block.
        let opening = self.store.clone();
        let opening = tokio::spawn(async move { opening.open().await });
        let store = tokio::select! {
            store = opening => store??,
            signal = signals.end() => return Ok(ExitCode::from(code_of(signal))),
        };
        let mut builder = Coordinator::builder(store.clone());
        if let Some(name) = self.name.clone().or_else(host) {
            builder = builder.name(&name);
        }
        let coordinator = builder.start()?;
        let (leaving, ended) = self.hold(&coordinator, pace, &what, &terms, &mut signals).await;
        leaving.close(&coordinator, &store, &mut signals).await;
        ended.map(ExitCode::from)
    }

    /// Ends as any argument does that cannot be read. The parser of arguments cannot tell by itself: whether
    /// this is a scope or a group, another one says.
    pub(crate) fn check(&self, line: &mut clap::Command) {
        if let Err(error) = self.what() {
            let told = format!("invalid value '{}' for '<SCOPE>': {error}", self.scope);
            let run = line.find_subcommand_mut("run");
            let wrong = clap::error::ErrorKind::ValueValidation;
            run.map_or_else(|| clap::Error::raw(wrong, &told), |run| run.error(wrong, &told))
                .exit();
        }
    }

    /// What is to be held.
    fn what(&self) -> Result<What> {
        Ok(match self.slots {
            Some(count) => What::Slots(self.scope.parse()?, count),
            None => What::Scope(self.scope.parse()?),
        })
    }

    async fn hold(
        &self,
        coordinator: &Coordinator,
        pace: Pace,
        what: &What,
        terms: &Terms,
        signals: &mut Signals,
    ) -> (Leaving, anyhow::Result<u8>) {
        let acquired = tokio::select! {
            lease = self.acquire(coordinator, what, terms) => lease,
            signal = signals.end() => return (Leaving::begin(self.quiet), Ok(code_of(signal))),
        };
        let lease = match acquired {
            Ok(lease) => lease,
            Err(error) => return (Leaving::begin(self.quiet), Err(error.into())),
        };
        self.say(format!("acquired {}, token {}", lease.id(), lease.token()));
        let ended = self.guarded(&lease, pace, signals).await;
        let leaving = Leaving::begin(self.quiet);
        let code = leaving.let_go(lease, ended).await;
        (leaving, code)
    }

    fn terms(&self) -> Result<Terms> {
        let terms = Terms::new().ttl(self.ttl);
        let terms = match self.wait {
            None => terms.wait_forever(),
            Some(wait) => terms.wait(wait),
        };
        self.metadata.iter().try_fold(terms, |terms, pair| match pair.split_once('=') {
            Some((key, value)) => Ok(terms.metadata(key, value)),
            None => Err(Error::invalid(format!("--metadata {pair:?}"), "write KEY=VALUE")),
        })
    }

    fn say(&self, what: impl std::fmt::Display) {
        if !self.quiet {
            say(what);
        }
    }

    /// Acquires it, and tells whoever waits what for.
    async fn acquire(
        &self,
        coordinator: &Coordinator,
        what: &What,
        terms: &Terms,
    ) -> Result<Lease> {
        let acquire = what.acquire(coordinator, terms);
        tokio::pin!(acquire);
        tokio::select! {
            lease = &mut acquire => return lease,
            () = sleep(TELL_AFTER) => {}
        }
        if let Some(holders) = what.holders(coordinator).await {
            self.say(format!("{holders}; waiting"));
        }
        let spinner = (!self.quiet).then(|| progress::waiting("waiting"));
        let lease = acquire.await;
        if let Some(spinner) = spinner {
            spinner.finish_and_clear();
        }
        lease
    }

    /// Runs the command; its exit code, or why it was stopped.
    async fn guarded(
        &self,
        lease: &Lease,
        pace: Pace,
        signals: &mut Signals,
    ) -> anyhow::Result<Ended> {
        let until = lease.valid_until();
        let variables = variables(lease);
        let mut guarded = tokio::select! {
            guarded = Guarded::start(&self.command, variables, until, pace) => guarded?,
            signal = signals.end() => return Ok(Ended::Itself(code_of(signal))),
        };
        if let Some(loss) = lease.loss() {
            return Ok(Ended::Lost(loss));
        }
        guarded.go()?;
        let mut watch = Watch { schedule: Schedule::new(pace, until), told: until, loss: None };
        let mut has_guardian = true;
        let mut asked = None;
        let mut asking = std::pin::pin!(lease.asked_to_hand_over());
        let status = loop {
            tokio::select! {
                status = guarded.child.wait() => break status?,
                signal = signals.next() => guarded.signal(signal),
                _ = guarded.guardian.wait(), if has_guardian => {
                    has_guardian = false;
                    watch.schedule.stop();
                }
                request = &mut asking, if asked.is_none() => {
                    let HandOverRequest { to, by } = &request;
                    self.say(format!("{by} asks to hand over to {to}; the command is stopped"));
                    asked = Some(request);
                    watch.schedule.stop();
                }
                () = sleep(LOOK) => {}
            }
            watch.look(lease, &mut guarded, asked.is_some()).await;
        };
        if guarded.end(pace.grace).await {
            // We were not there to see it, but it was stopped, whatever its exit code says.
            watch.loss.get_or_insert_with(|| lease.loss().unwrap_or(Loss::Expired));
        }
        // Its time may have run out meanwhile.
        let loss = watch.loss.or_else(|| asked.as_ref().and_then(|_| lease.loss()));
        Ok(match (loss, asked) {
            (Some(loss), _) => Ended::Lost(loss),
            (None, Some(request)) => Ended::Asked(code(status), request),
            (None, None) => Ended::Itself(code(status)),
        })
    }
}

/// What is to be held.
enum What {
    Scope(Scope),
    Slots(Namespace, u32),
}

impl What {
    async fn acquire(&self, coordinator: &Coordinator, terms: &Terms) -> Result<Lease> {
        match self {
            Self::Scope(scope) => coordinator.acquire(scope, terms).await,
            Self::Slots(group, count) => {
                Ok(coordinator.slots(group).acquire(*count, terms).await?.into_lease())
            }
        }
    }

    /// Who has it, for somebody who has to wait.
    async fn holders(&self, coordinator: &Coordinator) -> Option<String> {
        match self {
            Self::Scope(scope) => {
                let info = coordinator.holder(scope).await.ok()??;
                let (holder, token) = (&info.holder, info.token);
                let held_ms = SystemClock.wall_ms().saturating_sub(info.acquired_at_ms);
                let held = Duration::from_millis(u64::try_from(held_ms).unwrap_or(0));
                let held = table::duration(held);
                Some(format!("{scope} held by {holder} (token {token}) for {held}"))
            }
            Self::Slots(group, _) => {
                let holders = coordinator.slots(group).holders().await.ok()?;
                let names: Vec<String> =
                    holders.iter().map(|slot| slot.lease.holder.to_string()).collect();
                Some(format!("all slots of {group} held, by {}", names.join(", ")))
            }
        }
    }
}

/// The host's own name, for those to whom the environment does not tell it, as under cron.
pub(crate) fn host() -> Option<String> {
    if std::env::var_os("HOSTNAME").is_some_and(|name| !name.is_empty()) {
        return None;
    }
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    // Nothing else is a host's name, and what is not must not keep the command from running.
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (!name.is_empty() && name.chars().all(is_usual)).then_some(name)
}

/// What the command is told.
fn variables(lease: &Lease) -> Vec<(&'static str, String)> {
    let left = i64::try_from(lease.remaining().as_millis()).unwrap_or(i64::MAX);
    let deadline_ms = SystemClock.wall_ms().saturating_add(left);
    vec![
        ("TENURE_SCOPE", lease.id().to_owned()),
        ("TENURE_TOKEN", lease.token().to_string()),
        ("TENURE_DEADLINE", deadline_ms.to_string()),
    ]
}

/// Our own eye on the deadline, besides the guardian's.
struct Watch {
    schedule: Schedule,
    told: Duration,
    loss: Option<Loss>,
}

impl Watch {
    /// Does what is due. Whoever was asked to hand over stops the command without having lost anything.
    async fn look(&mut self, lease: &Lease, guarded: &mut Guarded, asked: bool) {
        // Whoever was frozen may find both at once: what has ended by itself was not stopped by us.
        if matches!(guarded.child.try_wait(), Ok(Some(_))) {
            return;
        }
        guarded.family.tidy();
        let until = lease.valid_until();
        if self.loss.is_none() {
            self.loss = lease.loss();
        }
        if self.loss.is_some() {
            self.schedule.stop();
        } else if until != self.told {
            self.told = until;
            self.schedule.prolong(until);
            if !guarded.prolong(until).await {
                self.schedule.stop();
            }
        }
        match self.schedule.next(SystemClock.uptime()) {
            Act::Wait(_) => {}
            Act::Ask => {
                // Whatever becomes of the lease now, the command was told to stop because of it.
                if !asked {
                    self.loss.get_or_insert(Loss::Expired);
                }
                guarded.signal(Signal::TERM);
            }
            Act::Force => {
                if !asked {
                    self.loss.get_or_insert(Loss::Expired);
                }
                guarded.family.kill();
            }
        }
    }
}
