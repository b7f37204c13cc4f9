//! The private server starts, survives a crash, steps its clock and cleans up behind itself.

use std::path::PathBuf;

use tenure_testkit::{Postgres, StopMode};

#[test]
fn a_server_keeps_what_was_committed_and_leaves_nothing_behind() {
    let mut server = Postgres::start().unwrap();
    let url = server.fresh_database().unwrap();
    let database = url.rsplit('/').next().unwrap().to_owned();
    server.psql(&database, "create table t (n int); insert into t values (7)").unwrap();
    assert_eq!(server.psql(&database, "show fsync").unwrap(), "on");
    server.restart(StopMode::Immediate).unwrap();
    assert_eq!(server.psql(&database, "select n from t").unwrap(), "7");
    server.pause().unwrap();
    server.resume().unwrap();
    assert_eq!(server.psql(&database, "select n from t").unwrap(), "7");
    let folder: PathBuf = server.socket_folder().to_owned();
    assert!(folder.exists());
    drop(server);
    assert!(!folder.exists());
}

#[test]
fn a_fake_clock_steps_the_wall_only() {
    let mut server = Postgres::start_with_fake_clock().unwrap();
    let hour = |server: &Postgres| -> i64 {
        let sql = "select floor(extract(epoch from clock_timestamp()))::bigint";
        server.psql("postgres", sql).unwrap().parse().unwrap()
    };
    let before = hour(&server);
    server.step_clock(3600).unwrap();
    let after = hour(&server);
    assert!((3600..3660).contains(&(after - before)), "{before} {after}");
    server.step_clock(-7200).unwrap();
    let back = hour(&server);
    assert!((-7200..-7100).contains(&(back - after)), "{after} {back}");
}
