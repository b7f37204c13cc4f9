//! The examples of the manual work as they are.

use tenure_server::auth::{AuthSettings, Authenticator};

const MANUAL: &str = include_str!("../../../../../docs/security.md");

fn examples(of: &str) -> Vec<&'static str> {
    let blocks = MANUAL.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.starts_with(&format!("# {of}\n"))).collect()
}

#[test]
fn the_token_file_of_the_manual_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let files = examples("tokens.toml");
    assert_eq!(files.len(), 1);
    let path = dir.path().join("tokens.toml");
    std::fs::write(&path, files[0]).unwrap();
    Authenticator::new(AuthSettings { token_file: Some(path), ..Default::default() }).unwrap();
}

#[test]
fn the_settings_of_the_manual_are_understood() {
    let files = examples("server.toml");
    assert_eq!(files.len(), 2);
    for file in files {
        let mut file: toml::Table = file.parse().unwrap();
        let auth: AuthSettings = file.remove("auth").unwrap().try_into().unwrap();
        assert!(auth.is_on() && file.is_empty());
    }
}
