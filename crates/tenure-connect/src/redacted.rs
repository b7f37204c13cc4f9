//! URLs that may be shown.

/// A URL without its password, or the token that NATS has in place of a user, and without its parameters, of
/// which one may be a password.
///
/// A password should have its slashes encoded. One that has not is not shown either: where an address reads
/// as if it had no login, and yet may have one, what may be a password is left out.
pub fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let before_parameters = path.split('?').next().unwrap_or_default();
    let hidden = authority.contains(':') && before_parameters.contains('@') || !is_hosts(authority);
    let shown = match authority.rsplit_once('@') {
        Some((login, host)) => match login.split_once(':') {
            None if scheme == "nats" => format!("{scheme}://{host}{path}"),
            None => url.to_owned(),
            Some((user, _)) => format!("{scheme}://{user}@{host}{path}"),
        },
        None if hidden => {
            let user = authority.split(':').next().unwrap_or_default();
            let host = rest.rsplit_once('@').map_or("…", |(_, host)| host);
            format!("{scheme}://{user}@{host}")
        }
        None => url.to_owned(),
    };
    shown.split('?').next().unwrap_or_default().to_owned()
}

/// Whether this is `host`, `host:port` or several of them, and so holds no password.
fn is_hosts(authority: &str) -> bool {
    let authority = authority.split('?').next().unwrap_or_default();
    authority.split(',').all(|host| {
        let port = match host.rsplit_once(']') {
            Some((_, port)) => port.strip_prefix(':'),
            None => host.split_once(':').map(|(_, port)| port),
        };
        port.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    })
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
        assert_eq!(redacted("postgres://me:se/cret@db/app"), "postgres://me@db/app");
        assert_eq!(redacted("postgres://me:1/2@db/app?a=b"), "postgres://me@db/app");
        assert_eq!(redacted("postgres://me:se/cr?et@db/app"), "postgres://me@db/app");
        assert_eq!(redacted("postgres://me:se/cret"), "postgres://me@…");
        for whole in ["postgres://db:5432/app", "etcd://a:1,[::1]:2/x", "https://[::1]:8368"] {
            assert_eq!(redacted(whole), whole);
        }
    }
}
