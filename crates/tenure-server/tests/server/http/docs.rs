//! What the documentation shows is what the server answers.

use serde_json::Value;

use super::place::Place;

/// Values that differ from run to run.
fn varies(field: &str) -> bool {
    field.ends_with("_ms") && field != "ttl_ms" || matches!(field, "nonce" | "name" | "message")
}

/// The same fields with the same values, those aside that vary.
fn assert_same(shown: &Value, got: &Value, command: &str) {
    match (shown, got) {
        (Value::Object(shown_all), Value::Object(got_all)) => {
            let fields = |all: &serde_json::Map<String, Value>| -> Vec<String> {
                let mut fields: Vec<_> = all.keys().cloned().collect();
                fields.sort();
                fields
            };
            assert_eq!(fields(shown_all), fields(got_all), "{command}\n{got}");
            for (field, value) in shown_all {
                if !varies(field) {
                    assert_same(value, &got_all[field], command);
                }
            }
        }
        (Value::Array(shown_all), Value::Array(got_all)) => {
            assert_eq!(shown_all.len(), got_all.len(), "{command}\n{got}");
            for (shown, got) in shown_all.iter().zip(got_all) {
                assert_same(shown, got, command);
            }
        }
        _ => assert_eq!(shown, got, "{command}"),
    }
}

fn assert_shown(shown: &str, got: &str, command: &str) {
    if let Ok(shown) = serde_json::from_str::<Value>(shown) {
        let got = serde_json::from_str(got).unwrap_or_else(|_| panic!("{command}\n{got}"));
        return assert_same(&shown, &got, command);
    }
    let lines = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let (shown, got) = (lines(shown), lines(got));
    assert_eq!(shown.len(), got.len(), "{command}\n{}", got.join("\n"));
    for (shown, got) in shown.iter().zip(&got) {
        match (shown.strip_prefix("data: "), got.strip_prefix("data: ")) {
            (Some(shown), Some(got)) => {
                let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
                assert_same(&parse(shown), &parse(got), command);
            }
            _ => assert_eq!(shown, got, "{command}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_manual_shows_is_what_curl_gets() {
    let place = Place::memory().await;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http-api.md");
    let manual = std::fs::read_to_string(path).unwrap();
    let blocks = manual.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut shown = 0;
    for example in blocks.flat_map(|block| block.split("$ ").skip(1)) {
        // A command ends with its line, unless a quotation is open.
        let end = example.char_indices().scan(false, |quoted, (at, character)| {
            *quoted ^= character == '\'';
            Some((at, !*quoted && character == '\n'))
        });
        let (end, _) = { end }.find(|(_, ends)| *ends).expect("an example has an answer");
        let (command, answer) = example.split_at(end);
        let script = command.replace("127.0.0.1:8368", &place.address.to_string());
        let output = tokio::process::Command::new("sh").args(["-c", &script]).output();
        let output = output.await.expect("a shell");
        let got = String::from_utf8(output.stdout).unwrap();
        assert!(!got.is_empty(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
        assert_shown(answer, &got, command);
        shown += 1;
    }
    assert!(shown >= 13, "the manual shows {shown} commands");
    place.end().await;
}
