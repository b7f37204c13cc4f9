//! The details of a status are what every gRPC library takes them for: a `google.rpc.Status`.
//!
//! The messages are written down here once more, as their .proto files have them, so that nothing of ours
//! vouches for itself.

use anyhow::{Context, Result, ensure};
use prost::Message;
use prost_types::Any;
use tenure_proto::v1;
use tenure_server::ServerLimits;
use tonic::{Code, Status};

use crate::serving::{Serving, acquire, asking, in_line, terms, waiting};

/// `google/rpc/status.proto`
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google/rpc/error_details.proto`
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

/// What any library reads from the trailers, if it agrees with them.
fn read(status: &Status) -> Result<RpcStatus> {
    let read = RpcStatus::decode(status.details()).context("no google.rpc.Status")?;
    ensure!(read.code == status.code() as i32 && read.code != 0, "{read:?} in {status:?}");
    ensure!(read.message == status.message() && !read.message.is_empty(), "{read:?}");
    Ok(read)
}

fn detail<T: Message + Default>(status: &RpcStatus, name: &str) -> Result<Option<T>> {
    let url = format!("type.googleapis.com/{name}");
    let any = status.details.iter().find(|any| any.type_url == url);
    Ok(any.map(|any| T::decode(&*any.value)).transpose()?)
}

#[tokio::test]
async fn an_error_is_a_status_with_our_message_in_it() -> Result<()> {
    let server = Serving::limited(ServerLimits::default()).await?;
    let leases = server.leases().await?;
    acquire(&leases, "shop/a", terms("a#1")).await?;
    let held = acquire(&leases, "shop/a", terms("b#1")).await.unwrap_err();
    ensure!(held.code() == Code::FailedPrecondition, "{held:?}");
    let status = read(&held)?;
    let error = detail::<v1::Error>(&status, "tenure.v1.Error")?.context("no error of ours")?;
    ensure!(error.code == "held" && error.scope == "shop/a", "{error:?}");
    ensure!(error.holder.as_deref() == Some("a#1"), "{error:?}");
    // Nobody is told when to come back who was not told to.
    ensure!(status.details.len() == 1, "{status:?}");
    Ok(())
}

#[tokio::test]
async fn whoever_is_to_ask_again_later_is_told_when_in_the_usual_way() -> Result<()> {
    let limits = ServerLimits { waiters: 1, ..ServerLimits::default() };
    let server = Serving::limited(limits).await?;
    let leases = server.leases().await?;
    acquire(&leases, "shop/a", terms("a#1")).await?;
    let _first = asking(&leases, "shop/a", waiting("b#1"));
    in_line(&leases, "shop/a", 1).await?;
    let full = acquire(&leases, "shop/a", waiting("c#1")).await.unwrap_err();
    ensure!(full.code() == Code::ResourceExhausted, "{full:?}");
    let status = read(&full)?;
    let error = detail::<v1::Error>(&status, "tenure.v1.Error")?.context("no error of ours")?;
    ensure!(error.code == "overloaded" && error.retry_after_ms == 1_000, "{error:?}");
    let retry = detail::<RetryInfo>(&status, "google.rpc.RetryInfo")?.context("no RetryInfo")?;
    let delay = retry.retry_delay.context("no delay")?;
    ensure!((delay.seconds, delay.nanos) == (1, 0), "{delay:?}");
    Ok(())
}
