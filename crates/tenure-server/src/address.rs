//! Where to listen: an address, or a name that stands for some.

use std::net::SocketAddr;
use std::time::Duration;

use tenure::{Error, Result};

/// How long a name may take to be resolved.
const PATIENCE: Duration = Duration::from_secs(10);

/// All addresses that `HOST:PORT` stands for, at least one. Which of them a server gets is not known
/// beforehand, so each has to be one that it may listen on: see
/// [`check_exposure`](crate::auth::check_exposure).
pub async fn listen_addresses(listen: &str) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = listen.parse() {
        return Ok(vec![address]);
    }
    let wrong = |reason: String| Error::invalid(format!("listen address {listen:?}"), reason);
    let port = listen.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains(':'));
    if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        let reason = "it is not HOST:PORT; write 127.0.0.1:8368, [::1]:8368 or localhost:8368";
        return Err(wrong(reason.into()));
    }
    let next = "give an address, or a name that this machine knows";
    let found = match tokio::time::timeout(PATIENCE, tokio::net::lookup_host(listen)).await {
        Ok(Ok(found)) => found.collect::<Vec<_>>(),
        Ok(Err(error)) => return Err(wrong(format!("it cannot be resolved: {error}; {next}"))),
        Err(_) => return Err(wrong(format!("it was not resolved within {PATIENCE:?}; {next}"))),
    };
    match found.is_empty() {
        true => Err(wrong(format!("it stands for no address; {next}"))),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::check_exposure;

    #[tokio::test]
    async fn a_name_stands_for_its_addresses_and_loopback_is_judged_by_them() {
        for (listen, port) in [("localhost:20104", 20104), ("127.0.0.1:1", 1), ("[::1]:0", 0)] {
            let found = listen_addresses(listen).await.unwrap();
            assert!(!found.is_empty(), "{listen}");
            for address in found {
                assert_eq!(address.port(), port, "{listen}");
                check_exposure(address, false, false, false).unwrap();
            }
        }
    }

    #[tokio::test]
    async fn what_stands_for_nothing_is_named_and_so_is_the_way_out() {
        for listen in ["localhost", ":8368", "8368", "", "::1", "localhost:http", "a:70000"] {
            let told = listen_addresses(listen).await.unwrap_err().to_string();
            assert!(told.contains(&format!("{listen:?}")), "{told}");
            assert!(told.contains("HOST:PORT") && told.contains("localhost:8368"), "{told}");
        }
        let told = listen_addresses("nowhere.invalid:8368").await.unwrap_err().to_string();
        assert!(told.contains("nowhere.invalid:8368") && told.contains("resolved"), "{told}");
    }
}
