//! Tokens that are listed in a file.

use std::time::Duration;

use tenure::Key;
use tenure::lease::{Coordinator, Terms};
use tenure::store::{Put, WatchRequest};
use tenure_proto::v1;
use tonic::Code;

use super::rig::{Rig, key, logged, token, until};

#[tokio::test]
async fn only_a_listed_token_gets_in_and_nobody_logs_it() {
    let (good, entry) = token("tokens-good", &["objects:*:*"]);
    let rig = Rig::start(Some(&entry), |_, _| {}).await;
    let nobody = rig.client(None).await;
    let told = nobody.get("order", "1").await.unwrap_err();
    assert_eq!(told.code(), Code::Unauthenticated);
    assert!(told.message().contains("authorization: Bearer"), "{told:?}");
    let wrong = "tnr_0123456789abcdef-not-listed";
    let told = nobody.as_with(wrong).get("order", "1").await.unwrap_err();
    assert_eq!(told.code(), Code::Unauthenticated);
    assert!(!told.message().contains(wrong), "{told:?}");
    assert!(!nobody.as_with(&good).get("order", "1").await.unwrap());
    assert_eq!(rig.authenticator.failures(), 2);
    let lines = logged(&["audit", "action=\"login\"", "peer=127.0.0.1", "refused"]);
    assert!(!lines.is_empty());
    for secret in [&good, wrong] {
        assert_eq!(logged(&[secret]), Vec::<String>::new());
        assert!(!format!("{:?}", rig.authenticator).contains(secret));
    }
}

#[tokio::test]
async fn a_token_that_is_taken_out_of_the_file_is_refused_soon_on_open_streams_too() {
    let (gone, old) = token("tokens-gone", &["objects:*:*"]);
    let (stays, kept) = token("tokens-stays", &["objects:*:*"]);
    let rig = Rig::start(Some(&format!("{old}{kept}")), |_, _| {}).await;
    let (gone, stays) = (rig.client(Some(&gone)).await, rig.client(Some(&stays)).await);
    let (calls, requests) = tokio::sync::mpsc::channel(1);
    let requests = gone.with(tokio_stream::wrappers::ReceiverStream::new(requests));
    let mut answers = gone.store.clone().exchange(requests).await.unwrap().into_inner();
    let get = v1::call::Call::Get(v1::GetRequest { key: key("order", "1") });
    let call = v1::ExchangeRequest { calls: vec![v1::Call { id: 1, call: Some(get) }] };
    calls.send(call.clone()).await.unwrap();
    let first = answers.message().await.unwrap().unwrap().answers.remove(0).answer;
    assert!(matches!(first, Some(v1::answer::Answer::Get(_))), "{first:?}");

    let request = v1::WatchRequest { kind: Some("order".into()), ..v1::WatchRequest::default() };
    let mut watch = gone.store.clone().watch(gone.with(request)).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();

    // A slip of the pen changes nothing.
    rig.list("[[token]]\nnam = 1");
    until("an error in the log", || async {
        let _ = gone.get("order", "1").await;
        !logged(&["ERROR", "`nam`", "stays in force"]).is_empty()
    })
    .await;
    assert!(gone.get("order", "1").await.is_ok());

    rig.list(&kept);
    until("the token is refused", || async {
        gone.get("order", "1").await.is_err_and(|told| told.code() == Code::Unauthenticated)
    })
    .await;
    assert!(stays.get("order", "1").await.is_ok());
    calls.send(call).await.unwrap();
    let second = answers.message().await.unwrap().unwrap().answers.remove(0).answer;
    let Some(v1::answer::Answer::Error(told)) = second else { panic!("{second:?}") };
    assert_eq!(told.code, tenure_proto::status::UNAUTHENTICATED, "{told:?}");
    let ended = tokio::time::timeout(std::time::Duration::from_secs(30), watch.message()).await;
    assert_eq!(ended.unwrap().unwrap_err().code(), Code::Unauthenticated);
}

/// Signed tokens end before programs do; whoever issues them writes new ones into the same file.
#[tokio::test]
async fn who_shows_a_file_goes_on_with_what_is_written_into_it() {
    let (first, old) = token("tokens-first", &["*"]);
    let (second, new) = token("tokens-second", &["*"]);
    let rig = Rig::start(Some(&format!("{old}{new}")), |_, _| {}).await;
    let file = rig.dir.path().join("shown");
    std::fs::write(&file, format!("{first}\n")).unwrap();
    let store = rig.store_with(|options| options.token_file(&file)).await;
    let put = |state: &str| Put::new(Key::new("order", "1"), state.to_owned());
    let mut watch = store.watch(&WatchRequest::kind("order")).await.unwrap();
    let coordinator = Coordinator::new(store.clone()).unwrap();
    let lease = coordinator.acquire(&"a/b".parse().unwrap(), &Terms::new()).await.unwrap();
    store.commit(put("new")).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().events.len(), 1);

    std::fs::write(&file, format!("{second}\n")).unwrap();
    rig.list(&new);
    let stranger = rig.client(Some(&first)).await;
    until("the first token is refused", || async {
        stranger.get("order", "1").await.is_err_and(|told| told.code() == Code::Unauthenticated)
    })
    .await;
    store.commit(put("paid")).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(30), watch.next()).await.unwrap();
    assert_eq!(told.unwrap().unwrap().events.len(), 1);
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
}
