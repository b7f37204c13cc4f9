//! What `deploy/` starts the server with is what the server knows.

use crate::tenure;

fn read(path: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/");
    std::fs::read_to_string(format!("{root}{path}"))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words of a text that begin like this, up to what cannot be part of them.
fn words<'a>(text: &'a str, beginning: &str) -> Vec<&'a str> {
    let of_a_word = |c: char| c == '-' || c == '_' || c.is_ascii_alphanumeric();
    text.split(|c: char| !of_a_word(c)).filter(|word| word.starts_with(beginning)).collect()
}

#[test]
fn every_flag_and_variable_in_deploy_exists() {
    let help = tenure("", &["serve", "--help"]).ok();
    let main = tenure("", &["--help"]).ok();
    let unit = read("systemd/tenure.service");
    let docker = read("docker/Dockerfile");
    let manifest = read("kubernetes/tenure.yaml");
    // Other programs have flags of their own, so look only where the server is started.
    let starts = |text: &str, marks: &[&str]| -> String {
        let marked = |line: &&str| marks.iter().any(|mark| line.contains(mark));
        text.lines().filter(marked).collect::<Vec<_>>().join("\n")
    };
    let started = [
        starts(&unit, &["ExecStart="]),
        starts(&docker, &["serve --"]),
        starts(&manifest, &["            - --"]),
    ];
    for text in &started {
        let flags = words(text, "--");
        assert!(!flags.is_empty(), "{text}");
        for flag in flags {
            assert!(
                help.contains(&format!("{flag} ")) || help.contains(&format!("{flag}\n")),
                "{flag}"
            );
        }
    }
    for text in [&unit, &docker, &manifest] {
        for variable in words(text, "TENURE_") {
            assert!(help.contains(variable) || main.contains(variable), "{variable}");
        }
    }
}
