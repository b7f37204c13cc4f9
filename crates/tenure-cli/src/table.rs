//! Tables for people: aligned columns, two spaces apart, no lines.

use std::io::{self, Write};

/// Rows under a heading; the last column is not padded.
pub(crate) fn render(heading: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..heading.len())
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            cells.chain([heading[at].len()]).max().unwrap_or(0)
        })
        .collect();
    let heading: Vec<String> = heading.iter().map(|cell| (*cell).to_owned()).collect();
    let lines = std::iter::once(&heading).chain(rows).map(|row| line(row, &widths) + "\n");
    lines.collect()
}

/// Prints rows under a heading.
pub(crate) fn print(heading: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(render(heading, rows).as_bytes())?;
    out.flush()
}

fn line(row: &[String], widths: &[usize]) -> String {
    let last = row.len().saturating_sub(1);
    let cells = row.iter().zip(widths).enumerate().map(|(at, (cell, width))| match at == last {
        true => cell.clone(),
        false => format!("{cell:width$}"),
    });
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// `-` where there is nothing.
pub(crate) fn or_dash(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

/// A wall-clock label, to the second, in UTC.
pub(crate) fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map_or_else(|_| ms.to_string(), |time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string())
}

/// A duration as a person would say it.
pub(crate) fn duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
