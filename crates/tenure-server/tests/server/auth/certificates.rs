//! Client certificates.

use tonic::Code;

use super::rig::{Ca, Rig, logged, mtls, token, until, write};

const LIST: &str = r#"
[[certificate]]
subject = "spiffe://test/billing/*"
permissions = ["objects:read:order/*"]
"#;

#[tokio::test]
async fn a_certificate_is_as_good_as_a_token() {
    let (good, entry) = token("certificates-token", &["objects:*:*"]);
    let list = format!("{LIST}{entry}");
    let rig = Rig::start(Some(&list), |dir, it| it.mtls = mtls(dir, false)).await;
    let listed = rig.ca.for_client("spiffe://test/billing/7");
    let client = rig.connect(None, Some(listed)).await.unwrap();
    assert!(!client.get("order", "1").await.unwrap());
    let told = client.put(&[("order", "1")]).await.unwrap_err();
    assert_eq!(told.code(), Code::PermissionDenied);
    assert!(told.message().contains("spiffe://test/billing/7 may not objects:write order/1"));
    // A token counts before a certificate, and a wrong one is not made good by it.
    assert!(client.as_with(&good).put(&[("order", "1")]).await.is_ok());
    let told = client.as_with("wrong").get("order", "1").await.unwrap_err();
    assert_eq!(told.code(), Code::Unauthenticated);

    let unlisted = rig.ca.for_client("spiffe://test/shipping/1");
    let unlisted = rig.connect(None, Some(unlisted)).await.unwrap();
    let told = unlisted.get("order", "1").await.unwrap_err();
    assert_eq!(told.code(), Code::Unauthenticated);
    let line = ["subject=\"spiffe://test/shipping/1\"", "action=\"login\"", "refused"];
    assert_eq!(logged(&line).len(), 1);

    let none = rig.client(None).await;
    assert_eq!(none.get("order", "1").await.unwrap_err().code(), Code::Unauthenticated);
    assert!(none.as_with(&good).get("order", "1").await.is_ok());
}

#[tokio::test]
async fn certificates_of_others_are_refused_in_the_handshake_and_none_at_all_where_one_is_required()
{
    let rig = Rig::start(Some(LIST), |dir, it| it.mtls = mtls(dir, true)).await;
    let own = rig.ca.for_client("spiffe://test/billing/7");
    assert!(rig.connect(None, Some(own)).await.unwrap().get("order", "1").await.is_ok());
    let stranger = Ca::new().for_client("spiffe://test/billing/7");
    for identity in [Some(stranger), None] {
        // With TLS 1.3 the client is done before it hears that it was refused.
        let refused = match rig.connect(None, identity).await {
            Ok(client) => client.get("order", "1").await.is_err_and(|told| {
                !matches!(told.code(), Code::Unauthenticated | Code::PermissionDenied)
            }),
            Err(_) => true,
        };
        assert!(refused);
    }
}

#[tokio::test]
async fn new_issuers_count_without_a_restart_and_old_ones_no_more() {
    let rig = Rig::start(Some(LIST), |dir, it| it.mtls = mtls(dir, true)).await;
    let next = Ca::new();
    let admitted = async |ca: &Ca| {
        let identity = ca.for_client("spiffe://test/billing/7");
        match rig.connect(None, Some(identity)).await {
            Ok(client) => client.get("order", "1").await.is_ok(),
            Err(_) => false,
        }
    };
    let path = rig.dir.path().join("ca.pem");
    assert!(admitted(&rig.ca).await && !admitted(&next).await);
    write(path.clone(), &format!("{}{}", rig.ca.pem, next.pem));
    until("the new issuer counts", || admitted(&next)).await;
    assert!(admitted(&rig.ca).await);
    // One that cannot be read changes nothing, and is logged with its name.
    write(path.clone(), "no certificate");
    let name = path.display().to_string();
    until("the broken file was looked at", || async {
        admitted(&next).await && !logged(&["client CA file", &name]).is_empty()
    })
    .await;
    assert!(admitted(&rig.ca).await);
    write(path, &next.pem);
    until("the old issuer counts no more", || async { !admitted(&rig.ca).await }).await;
    assert!(admitted(&next).await);
}

#[tokio::test]
async fn without_a_list_certificates_mean_nothing_so_that_is_refused() {
    use tenure_server::auth::{AuthSettings, Authenticator};
    let only =
        AuthSettings { mtls: mtls(std::path::Path::new("/"), true), ..AuthSettings::default() };
    assert!(Authenticator::new(only).unwrap_err().to_string().contains("token_file"));
    assert!(Authenticator::new(AuthSettings::default()).is_err());
}
