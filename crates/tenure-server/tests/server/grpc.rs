//! What all services have in common.

use anyhow::{Context, Result, ensure};
use tenure_server::ServerLimits;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::serving::{Serving, next};

#[tokio::test]
async fn reflection_lists_the_services_and_describes_them() -> Result<()> {
    let server = Serving::limited(ServerLimits::default()).await?;
    let mut client = ServerReflectionClient::new(server.channel().await?);
    let ask =
        |request| ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    let questions = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("tenure.v1.Leases.Session".into())),
    ];
    let asked = futures::stream::iter(questions);
    let mut answers = client.server_reflection_info(asked).await?.into_inner();
    let first = next(&mut answers).await?.and_then(|answer| answer.message_response);
    let Some(MessageResponse::ListServicesResponse(listed)) = first else {
        anyhow::bail!("{first:?}");
    };
    let names: Vec<_> = listed.service.iter().map(|service| &*service.name).collect();
    for name in ["Store", "Leases", "Slots", "Elections"] {
        ensure!(names.contains(&&*format!("tenure.v1.{name}")), "{name}: {names:?}");
    }
    let second = next(&mut answers).await?.context("a second answer")?.message_response;
    let described = matches!(second, Some(MessageResponse::FileDescriptorResponse(_)));
    ensure!(described, "{second:?}");
    Ok(())
}

/// What is older than its first version asks for the one before that.
#[tokio::test]
async fn reflection_answers_those_who_know_only_its_draft() -> Result<()> {
    use tonic_reflection::pb::v1alpha;
    use v1alpha::server_reflection_request::MessageRequest;
    use v1alpha::server_reflection_response::MessageResponse;
    let server = Serving::limited(ServerLimits::default()).await?;
    let channel = server.channel().await?;
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let message_request = Some(MessageRequest::FileContainingSymbol("tenure.v1.Slots".into()));
    let asked = v1alpha::ServerReflectionRequest { host: String::new(), message_request };
    let asked = futures::stream::iter([asked]);
    let mut answers = client.server_reflection_info(asked).await?.into_inner();
    let answer = next(&mut answers).await?.context("an answer")?.message_response;
    ensure!(matches!(answer, Some(MessageResponse::FileDescriptorResponse(_))), "{answer:?}");
    Ok(())
}
