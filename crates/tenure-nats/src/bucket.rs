//! The bucket and its settings: made as they have to be, or checked and refused.

use std::time::Duration;

use async_nats::jetstream::stream::{
    Config, DiscardPolicy, PersistenceMode, Republish, RetentionPolicy, StorageType,
};
use serde_json::json;
use tenure::backend::{WRITER_LEVEL, check_writer};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::connection::{Connection, RequestFailure, parse};
use crate::stream_info::{Info, InfoReply, NO_STREAM};
use crate::subject::Subjects;

/// How long a marker of an end stays: as long as a watcher may be away and still hear of it.
pub(crate) const MARKER_LIFE: Duration = Duration::from_secs(120);
/// The first server that has a time to live for each key.
const SERVER: (i64, i64, i64) = (2, 11, 0);
/// The lowest writer level that the bucket accepts, in its metadata.
const MIN_WRITER: &str = "tenure-min-writer";
/// There is a stream of this name with other settings.
const NAME_IN_USE: u64 = 10058;

/// Opens the bucket, making it if it is not there.
pub(crate) async fn open(connection: &Connection) -> Result<Info> {
    check_server(connection)?;
    let info = match connection.info().await? {
        Some(info) => info,
        None => create(connection).await?,
    };
    check(&info.config, &connection.subjects, connection.options.replicas)?;
    let required = info.config.metadata.get(MIN_WRITER).and_then(|level| level.parse().ok());
    check_writer(BACKEND, required.unwrap_or(0))?;
    Ok(info)
}

fn check_server(connection: &Connection) -> Result<()> {
    let (major, minor, patch) = SERVER;
    if connection.client.is_server_compatible(major, minor, patch) {
        return Ok(());
    }
    let version = connection.client.server_info().version;
    Err(Error::Refused {
        backend: BACKEND,
        reason: format!(
            "the server is NATS {version}, which has no time to live for each key; Tenure needs \
             {major}.{minor} or later: upgrade the servers"
        ),
    })
}

async fn create(connection: &Connection) -> Result<Info> {
    let config = wanted(&connection.subjects, connection.options.replicas.unwrap_or(1));
    let payload = serde_json::to_vec(&config).map_err(|e| Error::unavailable(BACKEND, e))?;
    let subject = format!("$JS.API.STREAM.CREATE.{}", connection.subjects.stream());
    let timeout = connection.options.reply_timeout;
    let reply = connection.request(&subject, None, payload.into(), timeout).await;
    // Making what is there already is no error, so this may be read as a read.
    let reply: InfoReply = parse(&reply.map_err(RequestFailure::for_read)?)?;
    if let Some(error) = reply.error.filter(|error| error.err_code != NAME_IN_USE) {
        let bucket = connection.subjects.bucket();
        let what = format!("bucket {bucket} cannot be made: {}", error.description);
        return Err(Error::unavailable(BACKEND, what));
    }
    connection.info().await?.ok_or_else(|| connection.gone())
}

/// The settings of a bucket of ours.
fn wanted(subjects: &Subjects, replicas: usize) -> Config {
    Config {
        name: subjects.stream(),
        description: Some("Tenure: objects and leases".into()),
        subjects: vec![subjects.all()],
        max_messages_per_subject: 1,
        max_messages: -1,
        max_bytes: -1,
        max_consumers: -1,
        max_message_size: -1,
        discard: DiscardPolicy::New,
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: replicas,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: false,
        allow_message_ttl: true,
        subject_delete_marker_ttl: Some(MARKER_LIFE),
        metadata: [(MIN_WRITER.to_owned(), WRITER_LEVEL.to_string())].into(),
        ..Config::default()
    }
}

/// Everything that is stored is told, in order, with its sequence.
fn republished(subjects: &Subjects) -> Republish {
    Republish { source: subjects.all(), destination: subjects.republished(), headers_only: false }
}

fn republish_flags(subjects: &Subjects) -> String {
    let (all, told) = (subjects.all(), subjects.republished());
    format!("--republish-source='{all}' --republish-destination='{told}'")
}

/// Has the bucket tell of what it stores, from now on. That costs the server something with every
/// write, so it begins with the first watch that anybody opens.
pub(crate) async fn republish(connection: &Connection) -> Result<()> {
    let info: serde_json::Value = connection.read("STREAM.INFO", &json!({})).await?;
    if info["error"]["err_code"] == json!(NO_STREAM) {
        return Err(connection.gone());
    }
    let mut config = info["config"].clone();
    if !config["republish"].is_null() {
        return Ok(());
    }
    // Only this one setting changes, whatever else the server keeps there.
    config["republish"] = json!(republished(&connection.subjects));
    let stream = connection.subjects.stream();
    let subject = format!("$JS.API.STREAM.UPDATE.{stream}");
    let (config, timeout) = (config.to_string(), connection.options.reply_timeout);
    let reply = connection.request(&subject, None, config.into(), timeout).await;
    let reply: InfoReply = parse(&reply.map_err(RequestFailure::for_read)?)?;
    let Some(error) = reply.error else { return Ok(()) };
    let flags = republish_flags(&connection.subjects);
    Err(Error::Refused {
        backend: BACKEND,
        reason: format!(
            "the bucket cannot be made to tell watchers: {}; have somebody run: nats stream edit \
             {stream} {flags}",
            error.description
        ),
    })
}

/// A setting that would break a promise.
struct Fault {
    setting: &'static str,
    is: String,
    wanted: String,
    because: &'static str,
    /// The flag that mends it; `None` if it cannot be changed.
    mend: Option<String>,
}

fn check(config: &Config, subjects: &Subjects, replicas: Option<usize>) -> Result<()> {
    let faults = faults(config, subjects, replicas);
    let Some(fault) = faults.first() else { return Ok(()) };
    let (bucket, stream) = (subjects.bucket(), subjects.stream());
    let next = if faults.iter().all(|fault| fault.mend.is_some()) {
        let flags: Vec<_> = faults.iter().filter_map(|fault| fault.mend.as_deref()).collect();
        format!("mend it with: nats stream edit {stream} {}", flags.join(" "))
    } else {
        "that cannot be changed: name another bucket in the URL, and Tenure makes it".to_owned()
    };
    Err(Error::Refused {
        backend: BACKEND,
        reason: format!(
            "bucket {bucket} is unsafe: {} is {}, wanted is {}, because {}; {next}",
            fault.setting, fault.is, fault.wanted, fault.because
        ),
    })
}

fn faults(config: &Config, subjects: &Subjects, replicas: Option<usize>) -> Vec<Fault> {
    let mut faults = contents(config, subjects);
    faults.extend(lives(config, subjects));
    faults.extend(promises(config, replicas));
    faults
}

fn fault(
    ok: bool,
    setting: &'static str,
    is: impl std::fmt::Display,
    wanted: impl std::fmt::Display,
    because: &'static str,
    mend: impl Into<Option<String>>,
) -> Option<Fault> {
    let (is, wanted) = (is.to_string(), wanted.to_string());
    (!ok).then(|| Fault { setting, is, wanted, because, mend: mend.into() })
}

/// Whose messages it holds.
fn contents(config: &Config, subjects: &Subjects) -> Vec<Fault> {
    let all = [subjects.all()];
    let transformed = config.subject_transform.is_some();
    let sourced = config.sources.as_ref().is_some_and(|sources| !sources.is_empty());
    [
        fault(config.mirror.is_none(), "mirror", "set", "none", "a mirror cannot be written", None),
        fault(
            !sourced,
            "sources",
            "set",
            "none",
            "others' messages would be taken for objects",
            None,
        ),
        fault(
            config.subjects == all,
            "subjects",
            format_args!("{:?}", config.subjects),
            format_args!("{all:?}"),
            "objects are kept there and nothing else may be",
            format!("--subjects='{}'", subjects.all()),
        ),
        fault(!transformed, "subject_transform", "set", "none", "objects would not be found", None),
        fault(!config.sealed, "sealed", true, false, "nothing could be written", None),
        fault(
            !config.no_ack,
            "no_ack",
            true,
            false,
            "no write would be answered",
            "--ack".to_owned(),
        ),
        fault(
            config.retention == RetentionPolicy::Limits,
            "retention",
            format_args!("{:?}", config.retention),
            "Limits",
            "objects would go when somebody has read them",
            None,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// When objects come to their end.
fn lives(config: &Config, subjects: &Subjects) -> Vec<Fault> {
    let markers = config.subject_delete_marker_ttl.unwrap_or_default();
    let told = config.republish.as_ref().is_none_or(|told| *told == republished(subjects));
    [
        fault(
            config.max_messages_per_subject == 1,
            "max_msgs_per_subject (history)",
            config.max_messages_per_subject,
            1,
            "an older value would come back when the newest one expires",
            "--max-msgs-per-subject=1".to_owned(),
        ),
        fault(
            config.max_age.is_zero(),
            "max_age",
            format_args!("{:?}", config.max_age),
            "0",
            "objects without a time to live would expire",
            "--max-age=0".to_owned(),
        ),
        fault(
            config.discard == DiscardPolicy::New,
            "discard",
            format_args!("{:?}", config.discard),
            "New",
            "a full bucket would drop the oldest objects, leases included, to make room",
            "--discard=new".to_owned(),
        ),
        fault(
            !config.discard_new_per_subject,
            "discard_new_per_subject",
            true,
            false,
            "no object could be changed",
            "--no-discard-per-subject".to_owned(),
        ),
        fault(
            config.allow_message_ttl,
            "allow_msg_ttl",
            false,
            true,
            "leases would never expire",
            "--allow-msg-ttl".to_owned(),
        ),
        fault(
            !markers.is_zero(),
            "subject_delete_marker_ttl",
            "unset",
            format_args!("{MARKER_LIFE:?}"),
            "nobody would be told of an expiry",
            "--subject-del-markers-ttl=2m".to_owned(),
        ),
        fault(
            config.allow_rollup,
            "allow_rollup_hdrs",
            false,
            true,
            "the server could not mark an expiry",
            "--allow-rollup".to_owned(),
        ),
        fault(
            told,
            "republish",
            config.republish.as_ref().map_or_else(String::new, |told| json!(told).to_string()),
            format_args!("none, or from {} to {}", subjects.all(), subjects.republished()),
            "watchers would miss changes that follow one another quickly",
            republish_flags(subjects),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What an answer means.
fn promises(config: &Config, replicas: Option<usize>) -> Vec<Fault> {
    let wanted = replicas.unwrap_or(1);
    let persisted = !matches!(config.persist_mode, Some(PersistenceMode::Async));
    let sized = config.max_message_size;
    [
        fault(
            config.num_replicas >= wanted,
            "replicas",
            config.num_replicas,
            wanted,
            "the URL or the options ask for so many",
            format!("--replicas={wanted}"),
        ),
        fault(
            persisted,
            "persist_mode",
            "async",
            "default",
            "writes would be acknowledged before they are stored",
            None,
        ),
        fault(
            sized <= 0 || sized >= 1024 * 1024,
            "max_msg_size",
            sized,
            "-1",
            "objects within the stated limits would be refused",
            "--max-msg-size=-1".to_owned(),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_make_is_what_we_accept() {
        let subjects = Subjects::new("b");
        assert!(check(&wanted(&subjects, 3), &subjects, Some(3)).is_ok());
        let error = check(&wanted(&subjects, 1), &subjects, Some(3)).unwrap_err().to_string();
        assert!(error.contains("replicas is 1, wanted is 3"), "{error}");
        assert!(error.contains("nats stream edit KV_b --replicas=3"), "{error}");
    }

    #[test]
    fn every_fault_is_mended_at_once_or_not_at_all() {
        let subjects = Subjects::new("b");
        let two = Config {
            max_messages_per_subject: 5,
            max_age: Duration::from_secs(60),
            ..wanted(&subjects, 1)
        };
        let error = check(&two, &subjects, None).unwrap_err().to_string();
        assert!(error.contains("--max-msgs-per-subject=1 --max-age=0"), "{error}");
        let sealed = Config { sealed: true, ..two };
        let error = check(&sealed, &subjects, None).unwrap_err().to_string();
        assert!(error.contains("name another bucket") && !error.contains("edit"), "{error}");
    }
}
