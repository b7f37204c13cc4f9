//! etcd without Tenure: the two transactions that people write by hand, over the same transport.
//!
//! One etcd lease for everything, granted once and kept alive beside, as its recipes do. The client
//! crate would need a protobuf compiler to build, so the handful of messages stands here.

use http::uri::PathAndQuery;
use prost::{Message, Oneof};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    create_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Operation {
    #[prost(oneof = "What", tags = "1, 2, 3")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
enum What {
    #[prost(message, tag = "1")]
    Get(OneKey),
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    Delete(OneKey),
}

#[derive(Clone, PartialEq, Message)]
struct OneKey {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<Operation>,
    #[prost(message, repeated, tag = "3")]
    failure: Vec<Operation>,
}

#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Grant {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Granted {
    #[prost(int64, tag = "2")]
    id: i64,
}

/// A raw client with one lease.
pub(crate) struct RawEtcd {
    channel: Channel,
    lease: i64,
}

impl RawEtcd {
    pub(crate) async fn connect(address: &str) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
        let mut this = Self { channel: endpoint.connect().await?, lease: 0 };
        // Longer than any run takes, so that nothing has to keep it alive.
        let granted: Granted =
            this.call("/etcdserverpb.Lease/LeaseGrant", Grant { ttl: 3600 }).await?;
        this.lease = granted.id;
        Ok(this)
    }

    async fn call<Q, R>(&self, path: &'static str, question: Q) -> anyhow::Result<R>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await?;
        let codec = ProstCodec::<Q, R>::default();
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(tonic::Request::new(question), path, codec).await?.into_inner())
    }

    async fn txn(&self, key: &str, created: i64, then: What) -> anyhow::Result<i64> {
        let key = key.as_bytes().to_vec();
        let compare = Compare { target: 1, key: key.clone(), create_revision: Some(created) };
        let get = Operation { what: Some(What::Get(OneKey { key })) };
        let success = vec![Operation { what: Some(then) }];
        let txn = Txn { compare: vec![compare], success, failure: vec![get] };
        let answer: Answer = self.call("/etcdserverpb.KV/Txn", txn).await?;
        anyhow::ensure!(answer.succeeded, "the raw client lost a lease it cannot lose");
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    /// Puts the key if it is absent, under the lease. Gives its revision.
    pub(crate) async fn acquire(&self, key: &str) -> anyhow::Result<i64> {
        // As much as a lease of ours holds.
        let value = vec![b'x'; 140];
        let put = Put { key: key.as_bytes().to_vec(), value, lease: self.lease };
        self.txn(key, 0, What::Put(put)).await
    }

    /// Deletes the key if it is still the one that was put.
    pub(crate) async fn release(&self, key: &str, revision: i64) -> anyhow::Result<()> {
        let delete = What::Delete(OneKey { key: key.as_bytes().to_vec() });
        self.txn(key, revision, delete).await.map(drop)
    }
}
