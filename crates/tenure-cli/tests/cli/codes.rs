//! The exit codes that only a store in trouble gives, and a store that does not keep its promises.

use std::time::Duration;

use tenure::Key;
use tenure::store::{Put, WatchRequest};

use crate::run::{Place, STUBBORN, WORK, finish, send, wait_for, wait_for_work};
use crate::serve::{Served, command};
use crate::{ran, tenure};

#[test]
fn a_hand_over_that_has_begun_and_is_not_done_is_of_unknown_outcome() {
    let place = Place::new();
    let [one, two] = ["one", "two"].map(|name| place.file(name));
    // It takes its whole grace to stop, which is longer than whoever asks waits.
    let stubborn = ["l/l", "--name", "one", "--grace", "20s", "--", "sh", "-c", STUBBORN, &one];
    let first = place.start(&stubborn);
    wait_for_work(&one);
    let second = place.start(&["l/l", "--name", "two", "--", "sh", "-c", WORK, &two]);
    let show = || tenure(&place.store, &["lease", "show", "l/l", "--history", "0"]).ok();
    wait_for("waiter", || show().contains("waiting   two#"));
    tenure(&place.store, &["lease", "hand-over", "l/l", "--wait", "2s"]).fails(8, "unknown");
    send(&first, rustix::process::Signal::KILL);
    send(&second, rustix::process::Signal::TERM);
    finish(first);
    finish(second);
}

#[test]
fn a_damaged_store_is_told_as_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("file:{}", folder.path().display());
    tenure(&store, &["object", "put", "order", "1", "new"]).ok();
    let file = folder.path().join("objects/order/1");
    std::fs::write(&file, "not what it was").expect("the object's file");
    let told = tenure(&store, &["object", "get", "order", "1"]);
    told.fails(9, "store is damaged");
}

#[test]
fn history_that_is_gone_is_told_as_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let options = tenure_sqlite::Options::new(&path).history(Duration::from_secs(600), 2);
        let store = options.open().expect("a store").into_store();
        // It forgets every few seconds.
        for n in 0..800 {
            let put = Put::new(Key::new("order", "1"), n.to_string());
            store.commit(put).await.expect("a commit");
            if store.watch(&WatchRequest::kind("order").after(1)).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        store.close().await;
    });
    let store = format!("sqlite:{}", path.display());
    let watch = ["object", "watch", "order", "--after", "1", "--limit", "1"];
    tenure(&store, &watch).fails(10, "list again");
}

#[test]
fn check_fails_where_a_store_does_not_do_what_it_promises() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = command(&["token", "reader", "--may", "objects:read:*"]).output().expect("a token");
    let err = String::from_utf8_lossy(&made.stderr).into_owned();
    let token = err.lines().find(|line| line.starts_with("tnr_")).expect("a token").to_owned();
    let file = folder.path().join("tokens.toml");
    std::fs::write(&file, ran(made).ok()).expect("a file");
    let served =
        Served::start(&["--store", "memory:", "--token-file", file.to_str().expect("text")]);
    // Whoever may only read meets a store that refuses what it says it does.
    let mut check = command(&["store", "check", &served.url, "--only", "absent_object"]);
    let checked = ran(check.env("TENURE_BEARER", &token).output().expect("the binary runs"));
    assert_eq!(checked.code, Some(1), "{}{}", checked.out, checked.err);
    let failed =
        checked.out.lines().find(|line| line.starts_with("FAILED  ")).expect("a line of it");
    assert!(failed.contains("objects:write"), "{failed}");
    assert!(checked.out.ends_with("0 passed, 1 failed\n"), "{}", checked.out);
}
