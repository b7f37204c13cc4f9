//! What the documentation shows is what the program prints.

use std::collections::BTreeMap;

use crate::tenure;

fn read(path: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    std::fs::read_to_string(format!("{root}{path}"))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_table_of_backends_is_the_codes_own() {
    let docs = read("docs/backends.md");
    let printed = tenure("", &["store", "capabilities", "--json"]).ok();
    let all: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_str(&printed).unwrap();
    let names: Vec<_> = all.iter().map(|one| one["backend"].as_str().unwrap()).collect();
    let heading = format!("| | {} |", names.join(" | "));
    // Whole rows, label and all: one that is missing, or answers for another, is noticed.
    let shown: BTreeMap<String, Vec<&str>> = docs
        .lines()
        .skip_while(|line| *line != heading)
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            let label = cells.next().unwrap_or_default().replace([' ', '-'], "_");
            (label, cells.collect())
        })
        .collect();
    let printed: BTreeMap<String, Vec<&str>> = all[0]
        .keys()
        .filter(|field| *field != "backend")
        .map(|field| (field.clone(), all.iter().map(|one| one[field].as_str().unwrap()).collect()))
        .collect();
    assert!(printed.len() > 10, "{printed:?}");
    assert_eq!(shown, printed, "docs/backends.md on the left, the code on the right");
}

/// The text of every Rust file of the project.
fn sources(folder: &std::path::Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).expect("a source file"));
        }
    }
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let mut text = String::new();
    sources(concat!(env!("CARGO_MANIFEST_DIR"), "/..").as_ref(), &mut text);
    let guarantees = read("docs/guarantees.md");
    let named: Vec<_> = guarantees.split('`').skip(1).step_by(2).collect();
    let tests: Vec<_> = named
        .into_iter()
        .filter(|name| name.len() > 12 && name.chars().all(|c| c == '_' || c.is_alphanumeric()))
        .filter(|name| name.contains('_') && !name.ends_with("_ms"))
        .collect();
    assert!(tests.len() > 20, "{tests:?}");
    for test in tests {
        assert!(text.contains(test), "docs/guarantees.md names {test}, which does not exist");
    }
}

#[test]
fn the_exit_codes_of_the_manual_are_those_of_the_help() {
    let help = tenure("", &["--help"]).ok();
    let docs = read("docs/operations.md");
    let codes = help.lines().filter(|line| line.starts_with("  ") && line.len() > 6);
    let codes: Vec<_> = codes
        .filter_map(|line| line.trim().split_once(' '))
        .filter(|(code, _)| code.parse::<u8>().is_ok())
        .collect();
    assert!(codes.len() >= 10, "{help}");
    for (code, _) in codes {
        assert!(docs.contains(&format!("| {code} |")), "exit code {code} is not in the manual");
    }
}

/// A line without what is different each time: the start of an owner, and times.
fn masked(line: &str) -> String {
    let word = |word: &str| match word.split_once('#') {
        Some((name, _)) => format!("{name}#"),
        None if word.ends_with('Z') && word.contains(':') => "TIME".into(),
        None if word.len() == 10 && word.starts_with("20") && word.contains('-') => "DATE".into(),
        None => word.to_owned(),
    };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_the_readme_shows_works() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}/readme.db", folder.path().display());
    let readme = read("README.md");
    let blocks = readme.split("```console").skip(1).filter_map(|rest| rest.split("```").next());
    let shell = blocks.collect::<String>();
    let mut shown = 0;
    let mut lines = shell.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("$ tenure ") else { continue };
        // One stream, as on a terminal, so that what is said and what is printed stay in order.
        let script = format!("{} {command} 2>&1", env!("CARGO_BIN_EXE_tenure"));
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .env("TENURE_STORE", &store)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let of_it = |line: &&str| !line.starts_with("$ ") && !line.is_empty();
        let expected: Vec<&str> = std::iter::from_fn(|| lines.next_if(of_it)).collect();
        let alike = |lines: &[&str]| lines.iter().map(|line| masked(line)).collect::<Vec<_>>();
        let printed_lines: Vec<&str> = printed.lines().collect();
        assert_eq!(alike(&printed_lines), alike(&expected), "after $ tenure {command}");
        // A command fails where an error is shown. `run` tells what it does in the same voice.
        let is_error = |line: &&str| line.starts_with("tenure: ") && !command.starts_with("run ");
        let fails = expected.iter().any(is_error);
        assert_eq!(output.status.success(), !fails, "$ tenure {command}: {printed}");
        shown += 1;
    }
    assert!(shown >= 6, "the README shows {shown} commands");
}
