//! The parts of an address, such as the password in `etcd://me:p%40ss@host` or the settings after its `?`.
//!
//! Parts are percent-encoded. Decoding is strict: a `%` must be followed by two hexadecimal digits, and the
//! result must be UTF-8. Errors name the part and do not show it, because it may be a password.

use percent_encoding::percent_decode_str;
use tenure::{Error, Result};

/// Decodes one part of an address. `part` names it in errors, for instance `password of the etcd address`.
///
/// ```
/// assert_eq!(tenure_net::address::decode("password", "p%40ss")?, "p@ss");
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// [`Error::Invalid`] if the part is not percent-encoded UTF-8.
pub fn decode(part: &str, text: &str) -> Result<String> {
    // The library leaves a stray '%' as it is. In an address it is a mistake: the '%' itself is written %25.
    let is_escape = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_escape) {
        let reason =
            "a '%' is not followed by two hexadecimal digits; write '%25' for the sign itself";
        return Err(Error::invalid(part, reason));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| Error::invalid(part, "it is not UTF-8 when decoded"))
}

/// The settings after the `?` of an address, `a=1&b=2`, with their values decoded. A setting without a `=`
/// has an empty value. `address` names the whole in errors, for instance `etcd address`.
pub fn settings<'a>(
    address: &'a str,
    query: &'a str,
) -> impl Iterator<Item = Result<(&'a str, String)>> {
    query.split('&').filter(|setting| !setting.is_empty()).map(move |setting| {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        Ok((name, decode(&format!("setting {name:?} of the {address}"), value)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_decoded() {
        for (text, decoded) in [
            ("", ""),
            ("p%40ss", "p@ss"),
            ("%25%34%31", "%41"),
            ("%C3%bc+ü", "ü+ü"),
            ("a b", "a b"),
        ] {
            assert_eq!(decode("part", text).unwrap(), decoded, "{text}");
        }
    }

    #[test]
    fn mistakes_name_the_part_and_do_not_show_it() {
        for text in ["secret%", "secret%4", "secret%zz", "secret%%41", "secret%2%35", "%+1secret"] {
            let error = decode("password of the address", text).unwrap_err().to_string();
            assert!(error.starts_with("invalid password of the address: "), "{text}: {error}");
            assert!(error.contains("hexadecimal") && !error.contains("secret"), "{text}: {error}");
        }
        let error = decode("user", "%ff").unwrap_err().to_string();
        assert!(error.contains("UTF-8"), "{error}");
    }

    #[test]
    fn settings_are_pairs_with_decoded_values() {
        let all: Result<Vec<_>> = settings("etcd address", "ca=%2Fa%20b&&tls&x=a=b").collect();
        let pair = |name, value: &str| (name, value.to_owned());
        assert_eq!(all.unwrap(), [pair("ca", "/a b"), pair("tls", ""), pair("x", "a=b")]);
        let error = settings("etcd address", "a=1&ca=%z").find_map(Result::err).unwrap();
        assert!(error.to_string().contains("setting \"ca\" of the etcd address"), "{error}");
        assert_eq!(settings("etcd address", "").count(), 0);
    }
}
