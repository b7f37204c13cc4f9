//! The manual: pages and `--help`, of every command there is.

use crate::tenure;

/// All commands that the help tells of, as words: `[]`, `["lease"]`, `["lease", "ls"]` and so on.
fn commands(above: &[String], all: &mut Vec<Vec<String>>) {
    let mut asked: Vec<&str> = above.iter().map(String::as_str).collect();
    asked.push("--help");
    let help = tenure("", &asked).ok();
    all.push(above.to_vec());
    let list = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let names = list.unwrap_or_default().lines().filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| *name != "help") {
        let mut below = above.to_vec();
        below.push(name.to_owned());
        commands(&below, all);
    }
}

/// The options that a help text tells of.
fn options(help: &str) -> impl Iterator<Item = &str> {
    let words = help.lines().filter(|line| line.trim_start().starts_with('-'));
    words.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")))
}

#[test]
fn every_command_has_a_page_that_says_what_its_help_says() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    let told = tenure("", &["man", pages.to_str().unwrap()]).ok();
    let mut all = Vec::new();
    commands(&[], &mut all);
    assert!(all.len() > 20, "{all:?}");
    assert!(told.starts_with(&format!("{} pages in", all.len())), "{told}");
    for words in all {
        let name = std::iter::once("tenure".to_owned()).chain(words.clone()).collect::<Vec<_>>();
        let page = std::fs::read_to_string(pages.join(format!("{}.1", name.join("-"))));
        let page = page.unwrap_or_else(|error| panic!("{name:?}: {error}")).replace("\\-", "-");
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "\"EXIT STATUS\"", "ENVIRONMENT"] {
            assert!(page.contains(&format!("\n.SH {heading}\n")), "{name:?} lacks {heading}");
        }
        for code in 0..=11 {
            assert!(page.contains(&format!("\n\\fB{code}\\fR\n")), "{name:?} lacks code {code}");
        }
        assert!(page.contains("\\fBTENURE_STORE\\fR"), "{name:?}");
        let mut asked: Vec<&str> = words.iter().map(String::as_str).collect();
        asked.push("--help");
        let help = tenure("", &asked).ok();
        for option in options(&help) {
            assert!(page.contains(&format!("\\fB{option}\\fR")), "{name:?} lacks {option}");
        }
        let does_something = !help.contains("\nCommands:\n");
        assert_eq!(help.contains("\nExamples:\n"), does_something, "the help of {name:?}");
        assert_eq!(page.contains("\n.SH EXAMPLES\n"), does_something, "the page of {name:?}");
    }
}

#[test]
fn run_says_how_it_ends_and_serve_what_it_reads() {
    let run = tenure("", &["run", "--help"]).ok();
    assert!(run.contains("11  somebody else holds it") && run.contains("126 if it cannot be run"));
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().to_str().unwrap();
    tenure("", &["man", pages]).ok();
    let serve = std::fs::read_to_string(folder.path().join("tenure-serve.1")).unwrap();
    for variable in ["TENURE_LISTEN", "TENURE_CONFIG", "TENURE_TLS_CERT", "TENURE_TOKEN_FILE"] {
        assert!(serve.contains(&format!("\\fB{variable}\\fR")), "{variable}");
    }
    std::fs::write(folder.path().join("file"), "").unwrap();
    let nowhere = folder.path().join("file/below");
    tenure("", &["man", nowhere.to_str().unwrap()]).fails(1, "cannot write the pages into");
}
