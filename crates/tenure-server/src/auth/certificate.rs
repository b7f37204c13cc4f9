//! The name in a client's certificate.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::asn1::{Ia5StringRef, ObjectIdentifier, PrintableStringRef, Utf8StringRef};
use x509_cert::der::{Decode as _, Tag, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The first URI, DNS name or e-mail address that it was issued for; without any, its common name. It
/// was proved in the handshake, so this only reads it.
pub(super) fn subject(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let certificate = Certificate::from_der(certificate).ok()?.tbs_certificate;
    let names =
        certificate.get::<SubjectAltName>().ok()?.map_or_else(Vec::new, |(_, names)| names.0);
    let alternative = names.iter().find_map(|name| match name {
        GeneralName::UniformResourceIdentifier(text)
        | GeneralName::DnsName(text)
        | GeneralName::Rfc822Name(text) => Some(text.as_str().into()),
        _ => None,
    });
    alternative.or_else(|| {
        let mut all = certificate.subject.0.iter().flat_map(|names| names.0.iter());
        let value = &all.rfind(|name| name.oid == COMMON_NAME)?.value;
        Some(match value.tag() {
            Tag::Utf8String => value.decode_as::<Utf8StringRef<'_>>().ok()?.as_str().into(),
            Tag::PrintableString => {
                value.decode_as::<PrintableStringRef<'_>>().ok()?.as_str().into()
            }
            Tag::Ia5String => value.decode_as::<Ia5StringRef<'_>>().ok()?.as_str().into(),
            _ => return None,
        })
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn of(common: &str, names: Vec<SanType>) -> Option<Arc<str>> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common);
        params.subject_alt_names = names;
        let key = KeyPair::generate().unwrap();
        subject(params.self_signed(&key).unwrap().der())
    }

    #[test]
    fn the_first_alternative_name_counts_before_the_common_name() {
        let text = |text: &str| text.try_into().unwrap();
        let uri = SanType::URI(text("spiffe://prod/billing"));
        let (dns, mail) = (SanType::DnsName(text("a.example")), SanType::Rfc822Name(text("a@b.c")));
        let ip = SanType::IpAddress([127, 0, 0, 1].into());
        let table = [
            (vec![uri.clone(), dns.clone()], "spiffe://prod/billing"),
            (vec![dns, uri], "a.example"),
            (vec![mail], "a@b.c"),
            (vec![ip], "worker é"),
            (vec![], "worker é"),
        ];
        for (names, expected) in table {
            assert_eq!(of("worker é", names).as_deref(), Some(expected));
        }
        assert_eq!(subject(&CertificateDer::from(vec![1, 2, 3])), None);
    }
}
