//! Lines to learn from, for `--help` and the manual pages. A test reads every one of them as the program
//! would.

/// What a line does, and the line.
type Example = (&'static str, &'static str);

/// The lines of every command that does something.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "run",
        &[
            (
                "A job of cron on three hosts: one runs it, the others leave it",
                "tenure run billing.nightly/close --wait 0 -- ./close-books",
            ),
            (
                "At most three at a time, on all hosts together",
                "tenure run search.indexer --slots 3 -- ./index",
            ),
            (
                "Lead, and tell the others where; the next one takes over when this one ends",
                "tenure run orders.reconciler/leader --metadata address=10.0.0.7:80 -- ./serve",
            ),
        ],
    ),
    (
        "serve",
        &[
            ("For programs on this machine, on a SQLite file of yours", "tenure serve"),
            (
                "For others, on Postgres",
                "tenure serve --listen 0.0.0.0:8368 --store postgres://tenure@db/app --tls-cert server.pem --tls-key server.key --token-file tokens.toml",
            ),
        ],
    ),
    (
        "lease ls",
        &[
            ("Everything that is held", "tenure lease ls"),
            (
                "One namespace and those below it, live",
                "tenure lease ls billing --children --watch",
            ),
        ],
    ),
    (
        "lease show",
        &[
            ("Who holds it, who waits", "tenure lease show billing.nightly/close"),
            (
                "And the last twenty who held it",
                "tenure lease show billing.nightly/close --history 20",
            ),
        ],
    ),
    (
        "lease hand-over",
        &[
            ("To the first in line", "tenure lease hand-over billing.nightly/close"),
            (
                "To one of those who wait",
                "tenure lease hand-over billing.nightly/close --to worker-2",
            ),
        ],
    ),
    (
        "lease revoke",
        &[
            (
                "Take it from a host that will not let go",
                "tenure lease revoke billing.nightly/close --reason 'the host is being replaced'",
            ),
            (
                "From the holder that was seen, not from one that came after it",
                "tenure lease revoke billing.nightly/close --expect-token 41",
            ),
        ],
    ),
    (
        "lease orphans",
        &[
            ("All that is left to reap", "tenure lease orphans"),
            ("Of one namespace and those below it", "tenure lease orphans billing --children"),
        ],
    ),
    (
        "lease reap",
        &[
            ("It has been seen to by hand", "tenure lease reap billing.nightly/close"),
            (
                "One of several that the scope has left",
                "tenure lease reap billing.nightly/close --token 41",
            ),
        ],
    ),
    ("lease watch", &[("All of a namespace and below", "tenure lease watch billing --json")]),
    (
        "slots ls",
        &[
            ("Who has which slot", "tenure slots ls search.indexer"),
            ("Which groups there are", "tenure slots ls"),
        ],
    ),
    (
        "slots hand-over",
        &[("Before the host of slot 2 goes", "tenure slots hand-over search.indexer 2")],
    ),
    (
        "slots resize",
        &[
            ("Five from now on", "tenure slots resize search.indexer 5"),
            (
                "Only if nobody has changed it since it was looked at",
                "tenure slots resize search.indexer 5 --expect-version 2",
            ),
        ],
    ),
    (
        "elect leader",
        &[("Who leads, for a program", "tenure elect leader orders.reconciler/leader --json")],
    ),
    (
        "elect hand-over",
        &[(
            "Before the leader's host is restarted",
            "tenure elect hand-over orders.reconciler/leader --to host-b",
        )],
    ),
    ("elect observe", &[("Every change", "tenure elect observe orders.reconciler/leader")]),
    (
        "store check",
        &[
            ("A SQLite file on this disk", "tenure store check sqlite:/tmp/try.db"),
            ("Leases only", "tenure store check postgres://tenure@db/app --only lease"),
        ],
    ),
    (
        "store capabilities",
        &[
            ("All kinds of stores side by side", "tenure store capabilities"),
            ("One", "tenure store capabilities etcd://127.0.0.1:2379/tenure"),
        ],
    ),
    ("store migrate", &[("Before a new version", "tenure store migrate postgres://tenure@db/app")]),
    (
        "object put",
        &[
            (
                "Only if nobody has changed it",
                "tenure object put order 1001 '{\"state\":\"paid\"}' --expect-version 1",
            ),
            (
                "Under `tenure run`: only while the lease is held",
                "tenure object put report 2026-01 --file report.json --fenced-by lease/$TENURE_SCOPE@$TENURE_TOKEN",
            ),
        ],
    ),
    (
        "object get",
        &[
            ("With its version", "tenure object get order 1001"),
            (
                "What was put, by its name",
                "tenure object get order first-order --by-name --payload",
            ),
        ],
    ),
    (
        "object ls",
        &[("By labels", "tenure object ls order --selector 'state=paid,region in (eu,us)'")],
    ),
    (
        "object rm",
        &[("Only if nobody has changed it", "tenure object rm order 1001 --expect-version 2")],
    ),
    (
        "object watch",
        &[("From the beginning, for a program", "tenure object watch order --after 0 --json")],
    ),
    (
        "token",
        &[(
            "The token goes to the terminal, the lines into the file",
            "tenure token billing --may 'leases:hold:billing.*' --may 'objects:read:order/*' >> tokens.toml",
        )],
    ),
    (
        "completions",
        &[(
            "For bash",
            "tenure completions bash > ~/.local/share/bash-completion/completions/tenure",
        )],
    ),
    (
        "man",
        &[("Then `man tenure` and `man tenure-run` work", "tenure man ~/.local/share/man/man1")],
    ),
];

/// The lines of a command, named as on the command line without `tenure`.
pub(crate) fn of(command: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(name, _)| *name == command).map_or(&[], |(_, examples)| examples)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// The words of a line as a shell would see them, as far as our lines need it.
    fn words(line: &str) -> Vec<String> {
        let line = line.split(" >").next().unwrap_or(line);
        let quoted = line.split('\'').enumerate();
        let mut words = Vec::new();
        for (at, part) in quoted {
            match at % 2 {
                0 => words.extend(part.split_whitespace().map(str::to_owned)),
                _ => words.push(part.to_owned()),
            }
        }
        words
    }

    #[test]
    fn every_example_is_a_command_that_would_run() {
        for (name, examples) in EXAMPLES {
            for (_, line) in *examples {
                let words = words(&line.replace("$TENURE_SCOPE@$TENURE_TOKEN", "a/b@1"));
                assert!(line.starts_with(&format!("tenure {name}")), "{name}: {line}");
                let read = crate::Arguments::try_parse_from(words);
                assert!(
                    read.is_ok(),
                    "{line}: {}",
                    read.err().map(|e| e.to_string()).unwrap_or_default()
                );
            }
        }
    }
}
