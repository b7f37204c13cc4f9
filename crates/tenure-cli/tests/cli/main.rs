//! The command line, run as a person or a script would run it.

mod absent;
mod check;
mod codes;
mod deploy;
mod docs;
mod following;
mod handing;
mod leaving;
mod manual;
mod objects;
mod orphans;
mod run;
mod serve;
mod stop;
mod unheard;

use std::process::{Command, Output};

/// What a command printed and how it ended.
struct Ran {
    out: String,
    err: String,
    code: Option<i32>,
}

fn tenure(store: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(arguments).env("TENURE_STORE", store).env_remove("TENURE_LOG");
    ran(command.output().expect("the binary runs"))
}

fn ran(output: Output) -> Ran {
    Ran {
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code(),
    }
}

impl Ran {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// The command line itself is wrong.
    #[track_caller]
    fn fails_on_line(self, says: &str) {
        assert_eq!(self.code, Some(2), "{}{}", self.out, self.err);
        assert!(self.err.contains(says), "{says:?} not in {:?}", self.err);
    }

    #[track_caller]
    fn fails(self, code: i32, says: &str) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert!(self.err.contains(says), "{says:?} not in {:?}", self.err);
        assert!(self.err.starts_with("tenure: "), "{:?}", self.err);
    }
}
