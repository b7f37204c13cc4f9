//! `tenure object put`.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use tenure::store::{Commit, Expect, Fence, Put, Store, Written};
use tenure::{Error, Key, Labels};

use super::kept;
use crate::duration::parse_duration;
use crate::json;
use crate::output::print;
use crate::stores::StoreArgument;

#[derive(clap::Args)]
pub(crate) struct PutArguments {
    /// The kind, for instance `order`.
    kind: String,
    /// The id within the kind.
    id: String,
    /// The payload; `-` reads standard input.
    #[arg(required_unless_present = "file")]
    payload: Option<String>,
    /// Take the payload from this file.
    #[arg(long, conflicts_with = "payload")]
    file: Option<PathBuf>,
    /// A name, unique within the kind.
    #[arg(long)]
    name: Option<String>,
    /// A label; may be given several times.
    #[arg(long = "label", short = 'l', value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Lives this long, for instance 30s, 5m or 500ms.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ttl: Option<Duration>,
    /// Only if it is not there yet.
    #[arg(long, conflicts_with = "expect_version")]
    create: bool,
    /// Only if it has this version.
    #[arg(long, value_name = "VERSION")]
    expect_version: Option<u64>,
    /// Only while this lease is held under this token: lease/SCOPE@TOKEN.
    #[arg(long, value_name = "KIND/ID@TOKEN")]
    fenced_by: Option<String>,
    /// JSON for programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) store: StoreArgument,
}

impl PutArguments {
    pub(super) fn commit(&self) -> anyhow::Result<Commit> {
        kept::refuse(&self.kind)?;
        let mut put = Put::new(Key::new(&self.kind, &self.id), self.read_payload()?);
        put.name = self.name.clone();
        put.labels = parse_labels(&self.labels)?;
        put.ttl = self.ttl;
        put.expect = match (self.create, self.expect_version) {
            (true, _) => Expect::Absent,
            (false, Some(version)) => Expect::Version(version),
            (false, None) => Expect::Any,
        };
        let commit = Commit::new();
        Ok(match &self.fenced_by {
            Some(text) => {
                let (lease, token) = parse_fence(text)?;
                commit.fenced_by(Fence::new(lease, token))
            }
            None => commit,
        }
        .put(put))
    }

    fn read_payload(&self) -> anyhow::Result<Bytes> {
        match (&self.file, self.payload.as_deref()) {
            (Some(path), _) => {
                let bytes = std::fs::read(path);
                Ok(bytes.with_context(|| format!("cannot read {}", path.display()))?.into())
            }
            (None, Some("-")) => {
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
                Ok(bytes.into())
            }
            (None, text) => Ok(Bytes::from(text.unwrap_or_default().to_owned())),
        }
    }

    pub(super) async fn run(&self, store: &Store, commit: Commit) -> anyhow::Result<()> {
        let committed = store.commit(commit).await?;
        let (result, changed) = match committed.writes.first() {
            Some(Written::Put(result)) => (result, true),
            Some(Written::Unchanged(result)) => (result, false),
            _ => anyhow::bail!("the store confirmed the put without its result"),
        };
        if self.json {
            return Ok(print(json::written(&self.kind, &self.id, result, changed))?);
        }
        let word = match (changed, result.version) {
            (false, _) => "unchanged",
            (true, 1) => "created",
            (true, _) => "changed",
        };
        Ok(print(format_args!(
            "{}/{} {word}: version {}, revision {}",
            self.kind, self.id, result.version, result.revision
        ))?)
    }
}

fn parse_labels(pairs: &[String]) -> tenure::Result<Labels> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Error::invalid(format!("label {text:?}"), "write it as KEY=VALUE")),
    };
    pairs.iter().map(pair).collect()
}

fn parse_fence(text: &str) -> tenure::Result<(Key, u64)> {
    let parts = text.rsplit_once('@').and_then(|(key, token)| {
        let (kind, id) = key.split_once('/')?;
        Some((Key::new(kind, id), token.parse().ok()?))
    });
    parts.ok_or_else(|| Error::invalid(format!("lease {text:?}"), "write it as KIND/ID@TOKEN"))
}
