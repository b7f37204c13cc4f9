//! Tokens that are listed in a file, by their SHA-256.
//!
//! A token is at least 128 random bits, so nobody can guess its way from the sum back to it, and a salt
//! or a slow hash would add nothing but time to every request. Looking the sum up in a map tells by its
//! timing at most something about sums, from which no token can be made.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use tenure::random::{Random, nonce};
use tenure::{Error, Result};

use super::access::{check_subject, check_tenant};

/// What our own tokens begin with, so that people and scanners of leaks know them when they see them.
pub const PREFIX: &str = "tnr_";

/// The SHA-256 of a token.
pub(super) type Sum = [u8; 32];

/// A new token of 256 random bits, and its SHA-256 for the file. The token itself is shown once and kept
/// nowhere.
pub fn mint(random: &dyn Random) -> (String, String) {
    let token = format!("{PREFIX}{}{}", nonce(random), nonce(random));
    let listed = hex(&sum(&token));
    (token, listed)
}

/// Refuses a name or a tenant that the file could not have, before a token is made for it.
pub fn check(name: &str, tenant: Option<&str>) -> Result<()> {
    let wrong = |reason| Error::invalid(format!("token {name:?}"), reason);
    check_subject(name).map_err(wrong)?;
    tenant.map_or(Ok(()), |tenant| check_tenant(tenant).map_err(wrong))
}

pub(super) fn sum(token: &str) -> Sum {
    Sha256::digest(token.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A sum as it is written in the file.
pub(super) fn parse_sum(text: &str) -> Option<Sum> {
    let mut sum = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in sum.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use tenure::random::SeededRandom;

    use super::*;

    #[test]
    fn a_minted_token_is_found_by_its_sum_and_never_repeats() {
        let random = SeededRandom::new(1);
        let (token, listed) = mint(&random);
        assert!(token.starts_with("tnr_") && token.len() == 4 + 64, "{token}");
        assert_eq!(parse_sum(&listed), Some(sum(&token)));
        assert_eq!(parse_sum(&listed.to_uppercase()), Some(sum(&token)));
        assert_ne!(mint(&random).0, token);
        assert!(check("billing", None).is_ok() && check("billing", Some("acme-1_a")).is_ok());
        for (name, tenant) in [("", None), ("a\n", None), ("a", Some("")), ("a", Some("b~c"))] {
            assert!(check(name, tenant).is_err(), "{name:?} {tenant:?}");
        }
        // What `printf %s abc | sha256sum` says.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sum("abc")), known);
        for bad in ["", "ab", &known[1..], &format!("{}é", &known[2..]), &known.replace('b', "x")]
        {
            assert_eq!(parse_sum(bad), None, "{bad}");
        }
    }
}
