//! URLs that may be shown.

/// A URL without its password, or the token that NATS has in place of a user, and without its parameters, of
/// which one may be a password.
pub fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let shown = match authority.rsplit_once('@') {
        Some((login, host)) => match login.split_once(':') {
            None if scheme == "nats" => format!("{scheme}://{host}{path}"),
            None => url.to_owned(),
            Some((user, _)) => format!("{scheme}://{user}@{host}{path}"),
        },
        None => url.to_owned(),
    };
    shown.split('?').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        assert_eq!(redacted("postgres://me:se@cret@db:5432/app"), "postgres://me@db:5432/app");
        assert_eq!(redacted("etcd://me:secret@a:1,b:2/app"), "etcd://me@a:1,b:2/app");
        assert_eq!(redacted("nats://me:secret@db/b"), "nats://me@db/b");
        assert_eq!(redacted("nats://token@db:4222/b"), "nats://db:4222/b");
        assert_eq!(redacted("postgres://db/app"), "postgres://db/app");
        let parameters = "postgres://db/app?user=me&password=secret&sslmode=require";
        assert_eq!(redacted(parameters), "postgres://db/app");
        assert_eq!(redacted("postgres://db?password=se@cret/x"), "postgres://db");
        assert_eq!(redacted("postgres://me:se?cret@db/app?a=b"), "postgres://me@db/app");
        assert_eq!(redacted("sqlite:/a@b:c"), "sqlite:/a@b:c");
    }
}
