//! Spinners and progress, for people at a terminal; programs and logs never see them.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(120);

/// Something is waited for, for who knows how long.
pub(crate) fn waiting(what: &str) -> ProgressBar {
    start(ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}", what)
}

/// So many things are done one after the other.
pub(crate) fn through(count: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(count).unwrap_or(u64::MAX));
    start(bar, "{bar:30} {pos}/{len} {elapsed}", "")
}

fn start(bar: ProgressBar, template: &str, message: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    // The templates are ours; one that did not parse would leave the usual look.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(message.to_owned());
    bar.enable_steady_tick(TICK);
    bar
}
