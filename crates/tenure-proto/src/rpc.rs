//! The part of `google.rpc` that details of a gRPC status are made of.
//!
//! Every gRPC library takes the trailer `grpc-status-details-bin` for a `google.rpc.Status`, and some make
//! an internal error of what is none. So an error of ours travels inside one, beside what others know how
//! to read. The messages are few and do not change, so they are written down here, with the numbers of
//! `google/rpc/status.proto` and `google/rpc/error_details.proto`.

use bytes::Bytes;
use prost::{Message, Name};
use prost_types::Any;
use tonic::{Code, Status};

use crate::v1;

/// What the name of a message comes after in the address of its type.
const TYPES: &str = "type.googleapis.com";
/// The package of these messages.
const RPC: &str = "google.rpc";

/// `google.rpc.Status`: a code, its message, and more about it.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.rpc.RetryInfo`: when to ask again.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

impl Name for RetryInfo {
    const NAME: &'static str = "RetryInfo";
    const PACKAGE: &'static str = RPC;
}

impl Name for v1::Error {
    const NAME: &'static str = "Error";
    const PACKAGE: &'static str = "tenure.v1";
}

fn url<M: Name>() -> String {
    format!("{TYPES}/{}.{}", M::PACKAGE, M::NAME)
}

fn any<M: Name>(message: &M) -> Any {
    Any { type_url: url::<M>(), value: message.encode_to_vec() }
}

/// A status with this error in its details, and with the time after which to ask again if it has one.
pub(crate) fn status(code: Code, error: v1::Error) -> Status {
    let mut details = vec![any(&error)];
    if error.retry_after_ms > 0 {
        let delay = std::time::Duration::from_millis(error.retry_after_ms);
        let retry_delay = prost_types::Duration::try_from(delay).ok();
        details.push(any(&RetryInfo { retry_delay }));
    }
    let message = error.message;
    let status = RpcStatus { code: code.into(), message: message.clone(), details };
    Status::with_details(code, message, Bytes::from(status.encode_to_vec()))
}

/// The error in the details of a status, if there is one.
pub(crate) fn error(status: &Status) -> Option<v1::Error> {
    let status = RpcStatus::decode(status.details()).ok()?;
    let ours = url::<v1::Error>();
    let any = status.details.iter().find(|any| any.type_url == ours)?;
    v1::Error::decode(&*any.value).ok()
}
