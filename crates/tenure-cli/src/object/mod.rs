//! `tenure object`: read, write and watch objects.

mod kept;
mod put;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use tenure::store::{Commit, Event, Expect, Query, Selector, Store, WatchRequest};
use tenure::{Error, Key, Labels, Object};

use self::put::PutArguments;
use crate::follow::{Follow, follow};
use crate::output::{print, say};
use crate::stores::StoreArgument;
use crate::{json, table};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create an object or replace all of it.
    Put(PutArguments),
    /// Show one object.
    Get(GetArguments),
    /// List objects of a kind.
    Ls(LsArguments),
    /// Delete an object.
    Rm(RmArguments),
    /// Follow what happens, from now or from a revision on.
    Watch(WatchArguments),
}

#[derive(clap::Args)]
pub(crate) struct GetArguments {
    /// The kind.
    kind: String,
    /// The id, or the name with --by-name.
    id: String,
    /// Find it by its name.
    #[arg(long)]
    by_name: bool,
    /// Print the payload alone, byte for byte; on a terminal with a line feed after it.
    #[arg(long, conflicts_with = "json")]
    payload: bool,
    /// JSON for programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgument,
}

#[derive(clap::Args)]
pub(crate) struct LsArguments {
    /// The kind.
    kind: String,
    /// Only ids that start with this.
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Only the object with this name.
    #[arg(long)]
    name: Option<String>,
    /// Only labels like these, for instance `app=web,tier!=test,zone in (a,b),owner,!old`.
    #[arg(long, short = 'l', default_value = "", hide_default_value = true)]
    selector: Selector,
    /// At most so many.
    #[arg(long)]
    limit: Option<usize>,
    /// One JSON object per line; with --watch one array per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    follow: Follow,
    #[command(flatten)]
    store: StoreArgument,
}

#[derive(clap::Args)]
pub(crate) struct RmArguments {
    /// The kind.
    kind: String,
    /// The id.
    id: String,
    /// Only if it has this version.
    #[arg(long, value_name = "VERSION")]
    expect_version: Option<u64>,
    /// JSON for programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgument,
}

#[derive(clap::Args)]
pub(crate) struct WatchArguments {
    /// The kind; all kinds without it.
    kind: Option<String>,
    /// Only ids that start with this.
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Everything after this revision instead of from now on.
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    /// End after so many events.
    #[arg(long)]
    limit: Option<usize>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgument,
}

impl Command {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let (store, result) = match self {
            Self::Put(arguments) => {
                // Read before the store is opened: a file that is not there needs no store.
                let put = arguments.commit()?;
                let store = arguments.store.open().await?;
                let result = arguments.run(&store, put).await;
                (store, result)
            }
            Self::Get(arguments) => {
                with(arguments.store.open_to_read().await?, async |store| {
                    arguments.run(store).await
                })
                .await
            }
            Self::Ls(arguments) => {
                with(arguments.store.open_to_read().await?, async |store| {
                    arguments.run(store).await
                })
                .await
            }
            Self::Rm(arguments) => {
                with(arguments.store.open().await?, async |store| arguments.run(store).await).await
            }
            Self::Watch(arguments) => {
                with(arguments.store.open_to_read().await?, async |store| {
                    arguments.run(store).await
                })
                .await
            }
        };
        store.close().await;
        result.map(|()| ExitCode::SUCCESS)
    }
}

async fn with(
    store: Store,
    work: impl AsyncFnOnce(&Store) -> anyhow::Result<()>,
) -> (Store, anyhow::Result<()>) {
    let result = work(&store).await;
    (store, result)
}

impl GetArguments {
    async fn run(&self, store: &Store) -> anyhow::Result<()> {
        let key = Key::new(&self.kind, &self.id);
        let found = match self.by_name {
            true => store.get_by_name(&self.kind, &self.id).await?,
            false => store.get(&key).await?,
        };
        let object = found.ok_or(Error::NotFound { key })?;
        let mut out = std::io::stdout().lock();
        if self.payload {
            out.write_all(&object.payload)?;
            // A prompt begins on a line of its own; what goes elsewhere stays as it is.
            if out.is_terminal() && !object.payload.ends_with(b"\n") {
                writeln!(out)?;
            }
        } else if self.json {
            writeln!(out, "{}", json::object(&object))?;
        } else {
            show(&object, &mut out)?;
        }
        Ok(out.flush()?)
    }
}

fn show(object: &Object, out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(out, "{}", object.key)?;
    if let Some(name) = &object.name {
        writeln!(out, "name      {name}")?;
    }
    if !object.labels.is_empty() {
        writeln!(out, "labels    {}", labels_text(&object.labels))?;
    }
    writeln!(
        out,
        "version   {}   revision {}   token {}",
        object.version, object.revision, object.token
    )?;
    writeln!(
        out,
        "created   {}   updated {}",
        table::time(object.created_at_ms),
        table::time(object.updated_at_ms)
    )?;
    if let Some(left) = object.expires_in {
        writeln!(out, "expires   in {}", table::duration(left))?;
    }
    match std::str::from_utf8(&object.payload) {
        Ok(text) => writeln!(out, "payload   {text}"),
        Err(_) => {
            writeln!(out, "payload   {} bytes; see them with --payload", object.payload.len())
        }
    }
}

impl LsArguments {
    async fn run(&self, store: &Store) -> anyhow::Result<()> {
        let request = WatchRequest::kind(&self.kind).prefix(&self.prefix);
        follow(&self.follow, self.json, store, &[request], |_| self.text(store)).await
    }

    /// The list as it is now.
    async fn text(&self, store: &Store) -> anyhow::Result<String> {
        let most = store.capabilities().limits.page_objects;
        let mut query = Query::new(&self.kind).prefix(&self.prefix).selector(self.selector.clone());
        query.name = self.name.clone();
        let mut left = self.limit.unwrap_or(usize::MAX);
        let (mut rows, mut lines) = (Vec::new(), Vec::new());
        while left > 0 {
            query.limit = left.min(most);
            let page = store.list(&query).await?;
            left -= page.objects.len();
            for object in &page.objects {
                match self.json {
                    true => lines.push(json::object(object)),
                    false => rows.push(row(object)),
                }
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        if self.json {
            return Ok(self.follow.list(lines.into_iter()));
        }
        if rows.is_empty() {
            say(format_args!("no {} objects match", self.kind));
            return Ok(String::new());
        }
        let heading = ["ID", "NAME", "VERSION", "REVISION", "UPDATED", "EXPIRES", "LABELS"];
        Ok(table::render(&heading, &rows))
    }
}

fn row(object: &Object) -> Vec<String> {
    vec![
        object.key.id.clone(),
        table::or_dash(object.name.as_deref()),
        object.version.to_string(),
        object.revision.to_string(),
        table::time(object.updated_at_ms),
        object.expires_in.map_or_else(|| "never".into(), |d| format!("in {}", table::duration(d))),
        table::or_dash(Some(&labels_text(&object.labels))),
    ]
}

impl RmArguments {
    async fn run(&self, store: &Store) -> anyhow::Result<()> {
        let key = Key::new(&self.kind, &self.id);
        let mut expect = self.expect_version.map_or(Expect::Exists, Expect::Version);
        if let Err(refusal) = kept::refuse(&self.kind) {
            let found = store.get(&key).await?.filter(kept::is_foreign).ok_or(refusal)?;
            // Not what Tenure puts in its place meanwhile.
            expect = self.expect_version.map_or(Expect::Revision(found.revision), Expect::Version);
        }
        let committed = store.commit(Commit::new().delete(key.clone(), expect)).await?;
        match self.json {
            true => print(
                serde_json::json!({ "kind": key.kind, "id": key.id, "revision": committed.revision }),
            )?,
            false => {
                let revision = committed.revision.unwrap_or(0);
                print(format_args!("{key} deleted: revision {revision}"))?;
            }
        }
        Ok(())
    }
}

impl WatchArguments {
    async fn run(&self, store: &Store) -> anyhow::Result<()> {
        let request = WatchRequest {
            kind: self.kind.clone(),
            prefix: self.prefix.clone(),
            after: self.after,
        };
        let mut watch = store.watch(&request).await?;
        let mut left = self.limit.unwrap_or(usize::MAX);
        while left > 0 {
            let Some(batch) = watch.next().await.transpose()? else { break };
            let mut out = std::io::stdout().lock();
            for event in batch.events.iter().take(left) {
                match self.json {
                    true => writeln!(out, "{}", json::event(batch.revision, event))?,
                    false => writeln!(out, "{}", event_line(batch.revision, event))?,
                }
            }
            out.flush()?;
            left = left.saturating_sub(batch.events.len());
        }
        Ok(())
    }
}

fn event_line(revision: u64, event: &Event) -> String {
    match event {
        Event::Put(object) => {
            let word = if object.version == 1 { "created" } else { "changed" };
            format!("{revision:>8}  {word:<8} {}  version {}", object.key, object.version)
        }
        Event::Delete { key, cause, .. } => {
            format!("{revision:>8}  {:<8} {key}", json::cause_word(*cause))
        }
    }
}

fn labels_text(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}
