//! What `deploy/` starts the server with is what the server knows.

use std::process::Command;

use serde_json::Value;

use crate::{ran, tenure};

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

/// Every document of a manifest.
fn documents(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn of_kind<'a>(all: &'a [Value], kind: &str) -> &'a Value {
    all.iter().find(|document| document["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn every_document_for_kubernetes_is_an_object() {
    for (path, count) in [("kubernetes/tenure.yaml", 5), ("kubernetes/rbac.yaml", 3)] {
        let all = documents(path);
        assert_eq!(all.len(), count, "{path}");
        for document in &all {
            for field in ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"] {
                let found = document.pointer(field).and_then(Value::as_str);
                assert!(
                    found.is_some_and(|text| !text.is_empty()),
                    "{path}: {field} in {document}"
                );
            }
        }
    }
    // What is mounted is there, and what is selected is what was labelled.
    let all = documents("kubernetes/tenure.yaml");
    let pods = &of_kind(&all, "Deployment")["spec"]["template"];
    assert_eq!(of_kind(&all, "Service")["spec"]["selector"], pods["metadata"]["labels"]);
    let names = |list: &Value| -> Vec<String> {
        let list = list.as_array().expect("a list").iter();
        let mut names: Vec<_> =
            list.map(|item| item["name"].as_str().expect("a name").to_owned()).collect();
        names.sort();
        names
    };
    let container = &pods["spec"]["containers"][0];
    assert_eq!(names(&container["volumeMounts"]), names(&pods["spec"]["volumes"]));
}

#[test]
fn what_a_pod_takes_on_fits_into_its_memory() {
    let all = documents("kubernetes/tenure.yaml");
    let settings = of_kind(&all, "ConfigMap")["data"]["tenure.toml"].as_str().expect("settings");
    // The server reads them: it gets as far as the store, which is none.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tenure.toml");
    std::fs::write(&file, settings).expect("a file");
    let serve = ["serve", "--config", file.to_str().expect("a path"), "--store", "nothing"];
    tenure("", &serve).fails(6, "store \"nothing\"");
    let settings: toml::Table = settings.parse().expect("TOML");
    let limit = |name: &str| settings["limits"][name].as_integer().expect("a number");
    let memory = "/spec/template/spec/containers/0/resources/limits/memory";
    let memory = of_kind(&all, "Deployment").pointer(memory).and_then(Value::as_str);
    assert_eq!(memory, Some("1Gi"));
    // As measured (docs/benchmarks.md), and as much as TLS and HTTP/2 buffer for a connection.
    let most =
        limit("waiters") * 19_000 + limit("streams") * 11_000 + limit("connections") * 50_000;
    assert!(most < (1 << 30) * 3 / 4, "{most} bytes, which leaves too little for requests");
}

#[test]
fn systemd_understands_the_unit() {
    // Where there is no systemd there is nobody to ask.
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tenure.service");
    let unit = read("systemd/tenure.service");
    let program = env!("CARGO_BIN_EXE_tenure");
    std::fs::write(&file, unit.replace("/usr/local/bin/tenure", program)).expect("a file");
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output();
    let verified = ran(verified.expect("it runs"));
    // A key that it does not know is no failure to it, but it says so.
    assert_eq!((verified.code, verified.err.as_str()), (Some(0), ""), "{}", verified.out);
}
