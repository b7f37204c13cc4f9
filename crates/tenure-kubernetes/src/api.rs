//! The calls to the API server that everything is made of. Each has a timeout.
//!
//! There is no PATCH among them: it would apply to whatever is there. A change is a PUT of the whole
//! Lease with the resourceVersion *and* the uid it was read with. Without the resourceVersion it
//! would overwrite what others wrote since; without the uid, a PUT of a Lease that was deleted would
//! create it again.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};
use kube::Client;
use kube::api::{
    DeleteParams, GetParams, ListParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use kube::core::Request;
use serde::de::DeserializeOwned;

use crate::account::Token;
use crate::connect::Connected;
use crate::error::Failure;
use crate::wire::{Lease, LeaseList};

/// Leases in one page of a list.
const PAGE: u32 = 500;

/// The Leases of one namespace.
#[derive(Clone)]
pub(crate) struct Api {
    client: Client,
    leases: Request,
    /// What requests show, where the client does not see to it.
    token: Option<Arc<Token>>,
    timeout: Duration,
    /// The server is asked to end a watch after this long; it is then taken up where it ended. So a
    /// connection that died silently is noticed before long.
    watch_seconds: u32,
}

/// Events of a watch.
pub(crate) type Events = BoxStream<'static, Result<WatchEvent<Lease>, Failure>>;

impl Api {
    pub(crate) fn new(connected: Connected, timeout: Duration, watch: Duration) -> Self {
        let namespace = &connected.namespace;
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        let token = connected.token.map(Arc::new);
        let watch_seconds = u32::try_from(watch.as_secs()).unwrap_or(u32::MAX).max(1);
        let leases = Request::new(path);
        Self { client: connected.client, leases, token, timeout, watch_seconds }
    }

    /// The Lease of this name. Linearizable: the server asks etcd.
    pub(crate) async fn get(&self, name: &str) -> Result<Option<Lease>, Failure> {
        let request = self.leases.get(name, &GetParams::default()).map_err(unbuilt)?;
        match self.send(request).await {
            Ok(lease) => Ok(Some(lease)),
            Err(Failure::Missing(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// One page of all Leases, behind the continue token of the page before.
    pub(crate) async fn page(&self, behind: Option<String>) -> Result<LeaseList, Failure> {
        let params =
            ListParams { limit: Some(PAGE), continue_token: behind, ..ListParams::default() };
        self.send(self.leases.list(&params).map_err(unbuilt)?).await
    }

    /// The newest resourceVersion there is.
    pub(crate) async fn head(&self) -> Result<String, Failure> {
        let params = ListParams::default().limit(1);
        let page: LeaseList = self.send(self.leases.list(&params).map_err(unbuilt)?).await?;
        Ok(page.metadata.resource_version)
    }

    /// Creates a Lease that is not there.
    pub(crate) async fn create(&self, lease: &Lease) -> Result<Lease, Failure> {
        let request = self.leases.create(&PostParams::default(), body(lease)?).map_err(unbuilt)?;
        self.send(request).await
    }

    /// Replaces a Lease that is still the one that was read.
    pub(crate) async fn replace(&self, lease: &Lease) -> Result<Lease, Failure> {
        let metadata = &lease.metadata;
        if metadata.uid.is_none() || metadata.resource_version.is_none() {
            return Err(Failure::Refused(format!("{} was never read", metadata.name)));
        }
        let request = self.leases.replace(&metadata.name, &PostParams::default(), body(lease)?);
        match self.send(request.map_err(unbuilt)?).await {
            // Deleted meanwhile, which is a change like any other.
            Err(Failure::Missing(_)) => Err(Failure::Overtaken),
            answer => answer,
        }
    }

    /// Deletes a Lease that is still the one that was read.
    pub(crate) async fn delete(&self, lease: &Lease) -> Result<(), Failure> {
        let preconditions = Preconditions {
            uid: lease.metadata.uid.clone(),
            resource_version: lease.metadata.resource_version.clone(),
        };
        let params = DeleteParams::default().preconditions(preconditions);
        let request = self.leases.delete(&lease.metadata.name, &params).map_err(unbuilt)?;
        self.send::<serde_json::Value>(request).await.map(drop)
    }

    /// Everything that happens behind a resourceVersion, until the server ends it.
    pub(crate) async fn watch(&self, behind: u64) -> Result<Events, Failure> {
        let params = WatchParams::default().timeout(self.watch_seconds);
        let request = self.leases.watch(&params, &behind.to_string()).map_err(unbuilt)?;
        let opening = self.client.request_events::<Lease>(self.shown(request));
        let events = match tokio::time::timeout(self.timeout, opening).await {
            Ok(events) => events?,
            Err(_) => return Err(self.unanswered()),
        };
        Ok(events.map(|event| event.map_err(Failure::from)).boxed())
    }

    /// How long a watch may be silent: the server ends it earlier.
    pub(crate) fn watch_silence(&self) -> Duration {
        Duration::from_secs(self.watch_seconds.into()) + self.timeout
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: http::Request<Vec<u8>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.timeout, self.client.request(self.shown(request))).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(self.unanswered()),
        }
    }

    /// The request with the token.
    fn shown(&self, mut request: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
        if let Some(token) = &self.token {
            request.headers_mut().insert(http::header::AUTHORIZATION, token.header());
        }
        request
    }

    fn unanswered(&self) -> Failure {
        Failure::Unsettled(format!("no answer within {:?}", self.timeout))
    }
}

fn body(lease: &Lease) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(lease).map_err(|error| Failure::Refused(error.to_string()))
}

fn unbuilt(error: kube::core::request::Error) -> Failure {
    Failure::Refused(error.to_string())
}
