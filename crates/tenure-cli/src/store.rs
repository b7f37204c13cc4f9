//! `tenure store`: look at a store.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use futures::StreamExt as _;
use tenure::store::{Reach, Store};
use tenure_conformance::{Opener, Outcome, Report, Subject, WorkerCommand};

use crate::output::print;
use crate::{exit, progress, stores, table};

/// Behaviours that are checked at the same time.
const AT_ONCE: usize = 4;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Prove on your own store that it does what it promises.
    ///
    /// Runs every behaviour of the contract that the store declares, with races between tasks,
    /// threads and processes and with injected faults. It works beside other data: it uses kinds
    /// named check-… and removes them again. It takes about a minute and ends with `N passed, N failed`.
    Check {
        /// The store.
        #[arg(help = stores::help())]
        url: String,
        /// Only behaviours whose name contains this.
        #[arg(long)]
        only: Option<String>,
        /// One JSON object per behaviour.
        #[arg(long)]
        json: bool,
    },
    /// Show what each kind of store promises, or what the given one does.
    Capabilities {
        /// The store; all kinds without it.
        #[arg(help = stores::help())]
        url: Option<String>,
        /// JSON for programs.
        #[arg(long)]
        json: bool,
    },
    /// Create or upgrade the tables of a store, and say where it stands.
    Migrate {
        /// The store.
        #[arg(help = stores::help())]
        url: String,
        /// JSON for programs.
        #[arg(long)]
        json: bool,
    },
    /// Serve as one of the processes of `check`.
    #[command(hide = true)]
    Worker {
        /// The store.
        url: String,
    },
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check { url, only, json } => check(&url, only.as_deref(), json).await,
            Self::Capabilities { url, json } => capabilities(url.as_deref(), json).await,
            Self::Migrate { url, json } => migrate(&url, json).await,
            Self::Worker { url } => {
                tenure_conformance::worker::serve(tenure_connect::connect(&url).await?).await?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

async fn check(url: &str, only: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
    let subject = subject(url).await?;
    let (mut passed, mut failed, mut not_applicable) = (0, 0, 0);
    let behaviours = tenure_conformance::behaviours().into_iter();
    let chosen: Vec<_> = behaviours
        .filter(|behaviour| only.is_none_or(|part| behaviour.name.contains(part)))
        .collect();
    // Several at once, because most of the time goes by waiting for lives to end; told in order.
    let running = chosen.iter().map(|behaviour| tenure_conformance::run_one(&subject, behaviour));
    let mut reports = futures::stream::iter(running).buffered(AT_ONCE);
    let bar = progress::through(chosen.len());
    while let Some(report) = reports.next().await {
        bar.inc(1);
        match report.outcome {
            Outcome::Passed => passed += 1,
            Outcome::Failed(_) => failed += 1,
            Outcome::NotApplicable(_) => not_applicable += 1,
        }
        bar.suspend(|| print_report(&report, json))?;
    }
    bar.finish_and_clear();
    if passed + failed == 0 {
        anyhow::bail!("no behaviour was checked; is --only spelled right?");
    }
    if !json {
        if not_applicable > 0 {
            print(format_args!("\n{not_applicable} not applicable to this store"))?;
        }
        print(format_args!("\n{passed} passed, {failed} failed"))?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
}

async fn subject(url: &str) -> tenure::Result<Subject> {
    let first = tenure_connect::connect(url).await?;
    if first.capabilities().reach == Reach::Process {
        let open: Opener = Arc::new(move || {
            // A handle of its own, which a behaviour may close.
            let store = Store::from_arc(Arc::clone(first.backend()));
            Box::pin(async move { Ok(store) })
        });
        return Ok(Subject { open, worker: None, clock: None });
    }
    first.close().await;
    let program = std::env::current_exe().map_err(|error| {
        tenure::Error::invalid("check", format!("this program cannot find itself: {error}"))
    })?;
    let args = vec!["store".into(), "worker".into(), url.into()];
    let url = url.to_owned();
    let open: Opener = Arc::new(move || {
        let url = url.clone();
        Box::pin(async move { tenure_connect::connect(&url).await })
    });
    Ok(Subject { open, worker: Some(WorkerCommand { program, args }), clock: None })
}

fn print_report(report: &Report, json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let (word, why) = match &report.outcome {
        Outcome::Passed => ("ok", None),
        Outcome::Failed(why) => ("FAILED", Some(why)),
        Outcome::NotApplicable(why) => ("n/a", Some(why)),
    };
    if json {
        let ms = u64::try_from(report.took.as_millis()).unwrap_or(u64::MAX);
        let line = serde_json::json!({
            "behaviour": report.name, "outcome": word.to_lowercase(), "why": why, "tries": report.tries,
            "took_ms": ms,
        });
        writeln!(out, "{line}")?;
    } else {
        let name = report.name.replace('_', " ");
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let tries = match report.tries {
            1 => String::new(),
            tries => format!(" (tried {tries} times, with longer lives)"),
        };
        writeln!(out, "{word:<6}  {name}{tries}{why}")?;
    }
    out.flush()
}

async fn capabilities(url: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
    let all = match url {
        None => tenure_connect::all_capabilities(),
        Some(url) => {
            stores::refuse_absent(url)?;
            let store: Store = tenure_connect::connect(url).await?;
            let capabilities = store.capabilities().clone();
            store.close().await;
            vec![capabilities]
        }
    };
    if json {
        let object = |capabilities: &tenure::store::Capabilities| {
            let rows = capabilities.rows().into_iter();
            let mut map: serde_json::Map<_, _> =
                rows.map(|(what, answer)| (what.replace([' ', '-'], "_"), answer.into())).collect();
            map.insert("backend".into(), capabilities.backend.into());
            map
        };
        let all: Vec<_> = all.iter().map(object).collect();
        print(serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut heading = vec!["CAPABILITY"];
    heading.extend(all.iter().map(|capabilities| capabilities.backend));
    let columns: Vec<_> = all.iter().map(tenure::store::Capabilities::rows).collect();
    let rows: Vec<Vec<String>> = columns.first().map_or_else(Vec::new, |first| {
        let what = first.iter().enumerate();
        what.map(|(at, (what, _))| {
            let answers = columns.iter().map(|column| column[at].1.clone());
            std::iter::once((*what).to_owned()).chain(answers).collect()
        })
        .collect()
    });
    table::print(&heading, &rows)?;
    Ok(ExitCode::SUCCESS)
}

async fn migrate(url: &str, json: bool) -> anyhow::Result<ExitCode> {
    // Opening a store brings its tables up to date; what is left to do is to say so.
    let store = tenure_connect::connect(url).await?;
    let revision = store.list(&tenure::store::Query::new("tenure").limit(1)).await?.revision;
    let backend = store.capabilities().backend;
    let level = tenure::backend::WRITER_LEVEL;
    let shown = tenure_connect::redacted(url);
    if json {
        let value = serde_json::json!({
            "store": shown, "backend": backend, "revision": revision, "writer_level": level,
        });
        print(value)?;
    } else {
        print(format_args!(
            "{shown}: {backend} store is up to date, at revision {revision}; this program writes at level {level}"
        ))?;
    }
    store.close().await;
    Ok(ExitCode::SUCCESS)
}
