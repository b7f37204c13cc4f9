//! What is logged to standard error, as `TENURE_LOG` says.

use tracing_subscriber::EnvFilter;

use crate::output::say;

/// A server tells what it does, above all to the audit log, but not of each lease that comes and goes. What
/// the Kubernetes client met, the store tells itself, and only if it is not mended by a repetition.
const OF_SERVER: &str = "info,tenure::lease=warn,kube_client=off";
/// A command tells only what went wrong.
const OF_COMMAND: &str = "error,kube_client=off";
const LEVELS: &str = "off, error, warn, info, debug, trace or TARGET=LEVEL, as in tenure=debug";

/// Starts to log. A setting that makes no sense is told, and does not keep anything from being done.
pub(crate) fn start(serves: bool) {
    let usual = if serves { OF_SERVER } else { OF_COMMAND };
    let said = std::env::var("TENURE_LOG").unwrap_or_default();
    let (filter, doubt) = read(&said, usual);
    if let Some(doubt) = doubt {
        say(format_args!("TENURE_LOG={said:?}: {doubt}; write {LEVELS}"));
    }
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        // It would say so there, and panic: what is logged must not end what is being done.
        .log_internal_errors(false)
        .init();
}

/// The filter, and what is doubtful about it.
fn read(said: &str, usual: &str) -> (EnvFilter, Option<String>) {
    if said.trim().is_empty() {
        return (EnvFilter::new(usual), None);
    }
    match EnvFilter::try_new(said) {
        Ok(filter) => (filter, said.split(',').find_map(no_level)),
        Err(error) => (EnvFilter::new(usual), Some(format!("{error}, so the usual is logged"))),
    }
}

/// A word that is no level is taken for the name of a module, of which there may be none.
fn no_level(part: &str) -> Option<String> {
    let part = part.trim();
    let is_level = part.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    let is_plain = !part.is_empty() && !part.contains(['=', ':', '[']);
    (is_plain && !is_level && !part.starts_with("tenure"))
        .then(|| format!("{part:?} is no level, so it is taken for a module's name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_told() {
        let doubt = |said| read(said, OF_COMMAND).1;
        for fine in
            ["", "error", "INFO", "tenure=debug", "warn,tenure::lease=info", "tenure", "off"]
        {
            assert_eq!(doubt(fine), None, "{fine}");
        }
        for nonsense in ["verbose", "info,loud", "tenure=loud", "=,="] {
            assert!(doubt(nonsense).is_some(), "{nonsense}");
        }
    }
}
