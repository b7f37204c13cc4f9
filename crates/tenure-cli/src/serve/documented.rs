//! Every setting has a flag, a variable and a key in the file, and one table of the documentation has them
//! all. Here the three are held against it.

use std::collections::BTreeSet;

use super::settings::Settings;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
/// The tables of the file, and the flag that a key of each begins with.
const TABLES: [(&str, &str); 6] = [
    ("", ""),
    ("tls", "tls-"),
    ("auth", ""),
    ("auth.jwt", "jwt-"),
    ("auth.mtls", "mtls-"),
    ("limits", "limit-"),
];

/// A row of the table: flag, variable, key.
type Row = (String, String, String);

/// What is between the first two backticks.
fn code(cell: &str) -> String {
    cell.split('`').nth(1).unwrap_or_default().to_owned()
}

/// The table that has a column for the file.
fn rows() -> Vec<Row> {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let lines = page.lines().skip_while(|line| !line.contains("| in the file |")).skip(2);
    let row = |line: &str| {
        let cells: Vec<String> = line.split('|').skip(1).take(3).map(code).collect();
        (cells[0].clone(), cells[1].clone(), cells[2].clone())
    };
    lines.take_while(|line| line.starts_with('|')).map(row).collect()
}

/// The keys of a table of the file, as its reader tells whoever gives another.
fn keys(table: &str) -> Vec<String> {
    let text = match table {
        "" => "nothing_of_the_kind = 1".to_owned(),
        table => format!("[{table}]\nnothing_of_the_kind = 1"),
    };
    let told = toml::from_str::<Settings>(&text).unwrap_err().message().to_owned();
    let (_, expected) = told.split_once("expected").unwrap_or_else(|| panic!("{told}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn key(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("[{table}] {key}") }
}

/// All keys, and the flag that goes with each.
fn all_keys() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (table, prefix) in TABLES {
        let keys = keys(table);
        for name in keys.iter().filter(|name| {
            TABLES.iter().all(|(known, _)| known.rsplit('.').next() != Some(name.as_str()))
        }) {
            let flag = name.strip_suffix("_ms").unwrap_or(name).replace('_', "-");
            all.push((key(table, name), format!("--{prefix}{flag}")));
        }
    }
    all
}

#[test]
fn the_table_the_flags_the_variables_and_the_file_agree() {
    let root = crate::command_line();
    let serve = root.find_subcommand("serve").unwrap();
    let rows = rows();
    let mut flags = BTreeSet::new();
    for argument in serve.get_arguments() {
        let Some(long) = argument.get_long().filter(|long| *long != "help") else { continue };
        let flag = format!("--{long}");
        let row = rows.iter().find(|(known, ..)| known.split(' ').next() == Some(&flag));
        let (shown, variable, _) = row.unwrap_or_else(|| panic!("{flag} is not in the table"));
        let env = argument.get_env().map(|env| env.to_string_lossy().into_owned());
        assert_eq!(Some(variable), env.as_ref(), "the variable of {flag}");
        let wanted = format!("TENURE_{}", long.replace('-', "_").to_uppercase());
        assert_eq!(*variable, wanted, "the variable of {flag}");
        let takes = argument.get_action().takes_values();
        let name = argument.get_value_names().unwrap_or_default().first();
        let name = name.filter(|_| takes).map(|name| format!(" {name}")).unwrap_or_default();
        assert_eq!(*shown, format!("{flag}{name}"), "as the table shows it");
        flags.insert(flag);
    }
    assert_eq!(rows.len(), flags.len(), "the table has a row of something that is no flag");
    let config = serve.get_arguments().find(|argument| argument.get_id() == "config").unwrap();
    let help = config.get_long_help().unwrap().to_string();
    let mut documented: Vec<_> = rows
        .iter()
        .map(|(flag, _, key)| (key.clone(), flag.split(' ').next().unwrap_or_default().to_owned()))
        .filter(|(key, _)| !key.is_empty())
        .collect();
    let mut known = all_keys();
    assert!(known.len() > 20, "{known:?}");
    documented.sort();
    known.sort();
    assert_eq!(documented, known);
    for (key, _) in known {
        let name = key.rsplit(' ').next().unwrap_or_default();
        assert!(help.contains(name), "--config does not tell of {name}");
    }
}
