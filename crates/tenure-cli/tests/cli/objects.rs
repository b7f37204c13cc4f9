//! `tenure object` on the embedded stores: what it prints, and the exit codes scripts rely on.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::{ran, tenure};

fn on_each_embedded_store(test: impl Fn(&str)) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display();
    for store in [format!("sqlite:{path}/objects.db"), format!("file:{path}/objects")] {
        test(&store);
    }
}

#[test]
fn put_get_ls_rm_and_their_exit_codes() {
    on_each_embedded_store(|store| {
        let run = |arguments: &[&str]| tenure(store, arguments);
        let created =
            run(&["object", "put", "order", "1", "new", "--name", "first", "-l", "tier=gold"]);
        assert_eq!(created.ok(), "order/1 created: version 1, revision 1\n");
        run(&["object", "put", "order", "1", "x", "--create"]).fails(4, "already exists");
        run(&["object", "put", "order", "2", "x", "--name", "first"]).fails(4, "taken by id \"1\"");
        let paid =
            ["object", "put", "order", "1", "paid", "--name", "first", "--expect-version", "1"];
        assert_eq!(run(&paid).ok(), "order/1 changed: version 2, revision 2\n");
        run(&paid).fails(4, "found version 2");
        run(&["object", "put", "order", "9", "x", "--expect-version", "1"]).fails(3, "not found");
        let same = run(&["object", "put", "order", "1", "paid", "--name", "first"]);
        assert_eq!(same.ok(), "order/1 unchanged: version 2, revision 2\n");

        assert_eq!(
            run(&["object", "get", "order", "first", "--by-name", "--payload"]).ok(),
            "paid"
        );
        let shown = run(&["object", "get", "order", "1"]).ok();
        assert!(shown.contains("name      first") && shown.contains("payload   paid"), "{shown}");
        let json: serde_json::Value =
            serde_json::from_str(&run(&["object", "get", "order", "1", "--json"]).ok()).unwrap();
        assert_eq!((&json["version"], &json["payload"]), (&2.into(), &"paid".into()));
        run(&["object", "get", "order", "404"]).fails(3, "order/404 not found");

        run(&["object", "put", "order", "2", "x", "--ttl", "1h", "--label", "tier=iron"]).ok();
        let table = run(&["object", "ls", "order"]).ok();
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("ID  NAME   VERSION  REVISION"), "{table}");
        assert!(lines[2].contains("in 59m") && lines[2].ends_with("tier=iron"), "{table}");
        let some = run(&["object", "ls", "order", "-l", "tier in (iron)", "--json"]).ok();
        assert_eq!(some.lines().count(), 1, "{some}");

        run(&["object", "rm", "order", "1", "--expect-version", "1"]).fails(4, "found version 2");
        assert_eq!(run(&["object", "rm", "order", "1"]).ok(), "order/1 deleted: revision 4\n");
        run(&["object", "rm", "order", "1"]).fails(3, "not found");
    });
}

#[test]
fn any_bytes_go_in_and_come_out() {
    on_each_embedded_store(|store| {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["object", "put", "blob", "1", "-", "--store", store])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        ran(child.wait_with_output().unwrap()).ok();
        let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["object", "get", "blob", "1", "--payload", "--store", store])
            .output()
            .unwrap();
        assert_eq!(output.stdout, bytes);
        let json = tenure(store, &["object", "get", "blob", "1", "--json"]).ok();
        assert!(json.contains("payload_base64"), "{json}");
    });
}

#[test]
fn a_watch_in_one_process_sees_the_writes_of_others() {
    on_each_embedded_store(|store| {
        tenure(store, &["object", "put", "job", "1", "a"]).ok();
        // From revision 0 on, so that it does not matter when the watch starts.
        let mut watch = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["object", "watch", "job", "--after", "0", "--limit", "4", "--store", store])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "       1  created  job/1  version 1");
        tenure(store, &["object", "put", "job", "1", "b"]).ok();
        tenure(store, &["object", "put", "other", "1", "b"]).ok();
        tenure(store, &["object", "put", "job", "2", "c", "--ttl", "100ms"]).ok();
        assert_eq!(lines.next().unwrap().unwrap(), "       2  changed  job/1  version 2");
        assert_eq!(lines.next().unwrap().unwrap(), "       4  created  job/2  version 1");
        assert_eq!(lines.next().unwrap().unwrap(), "       5  expired  job/2");
        assert!(watch.wait().unwrap().success());
    });
}

#[test]
fn a_fenced_put_applies_only_under_its_token() {
    on_each_embedded_store(|store| {
        // It writes under its own lease, and tells which one that was.
        let put = "\"$0\" object put k 1 x --fenced-by lease/$TENURE_SCOPE@$TENURE_TOKEN >&2; echo $TENURE_TOKEN";
        let line = ["run", "a/b", "--", "sh", "-c", put, env!("CARGO_BIN_EXE_tenure")];
        let token = tenure(store, &line).ok();
        let fence = format!("lease/a/b@{}", token.trim());
        tenure(store, &["object", "put", "k", "1", "late", "--fenced-by", &fence])
            .fails(5, "is lost");
        assert_eq!(tenure(store, &["object", "get", "k", "1", "--payload"]).ok(), "x");
    });
}

#[test]
fn what_tenure_keeps_is_not_written_by_hand() {
    on_each_embedded_store(|store| {
        let kinds = ["lease", "lease-waiter", "lease-orphan", "lease-slots", "lease-readers"];
        for kind in kinds.into_iter().chain(["lease-revoked", "lease-hand-over"]) {
            let put = tenure(store, &["object", "put", kind, "a/b", "x"]);
            put.fails(6, &format!("invalid kind {kind:?}: Tenure itself keeps its objects"));
        }
        let removing = ["object", "rm", "lease", "a/b"];
        let line = ["run", "a/b", "--quiet", "--", env!("CARGO_BIN_EXE_tenure")];
        tenure(store, &[&line[..], &removing].concat()).fails(6, "`tenure lease revoke` ends one");
        tenure(store, &["object", "rm", "lease-slots", "a"]).fails(6, "`tenure slots resize`");
        tenure(store, &["lease", "ls"]).ok();
    });
}

#[test]
fn what_is_no_lease_among_them_can_be_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    // Other programs can write it.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = tenure_sqlite::SqliteStore::open(&path).expect("a store").into_store();
        let put = tenure::store::Put::new(tenure::Key::new("lease", "a/b"), "x");
        store.commit(put).await.expect("a commit");
        store.close().await;
    });
    let store = format!("sqlite:{}", path.display());
    tenure(&store, &["object", "rm", "lease", "a/b"]).ok();
    assert_eq!(tenure(&store, &["lease", "ls"]).ok().lines().count(), 1);
}

#[test]
fn bad_input_is_named() {
    let store = "memory:";
    tenure("mysql://x", &["object", "ls", "k"]).fails(6, "sqlite:FILE");
    tenure("postgres://me:secret@127.0.0.1:1/x", &["object", "ls", "k"]).fails(7, "127.0.0.1");
    tenure(store, &["object", "put", "a/b", "1", "x"]).fails(6, "'/'");
    tenure(store, &["object", "put", "k", "1", "x", "-l", "novalue"]).fails(6, "KEY=VALUE");
    tenure(store, &["object", "put", "k", "1", "x", "--fenced-by", "k@1"])
        .fails(6, "KIND/ID@TOKEN");
    tenure(store, &["object", "put", "k", "1", "--file", "/nonexistent"]).fails(1, "/nonexistent");
    tenure(store, &["object", "put", "k", &"x".repeat(513), "x"])
        .fails(6, "id_bytes is limited to 512");
    let usage = tenure(store, &["object", "put", "k", "1", "x", "--ttl", "soon"]);
    assert_eq!(usage.code, Some(2));
    assert!(usage.err.contains("30s"), "{}", usage.err);
    let refused = tenure("postgres://me:secret@127.0.0.1:1/x", &["object", "ls", "k"]);
    assert!(!refused.err.contains("secret"), "{}", refused.err);
}

#[test]
fn without_a_store_it_uses_a_file_of_this_user() {
    let home = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments).env_remove("TENURE_STORE").env_remove("XDG_DATA_HOME");
        ran(command.env("HOME", home.path()).output().unwrap())
    };
    run(&["object", "put", "order", "1", "new"]).ok();
    assert_eq!(run(&["object", "get", "order", "1", "--payload"]).ok(), "new");
    assert!(home.path().join(".local/share/tenure/tenure.db").exists());
}
