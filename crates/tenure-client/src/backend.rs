//! The store contract, over the wire.

use async_trait::async_trait;
use tenure::backend::Backend;
use tenure::store::{
    Capabilities, Commit, Committed, Page, Query, Touch, Touched, Watch, WatchRequest,
};
use tenure::{Error, Key, Object, Result};
use tenure_proto::v1;
use tenure_proto::v1::answer::Answer;
use tenure_proto::v1::call::Call;

use crate::error::Fault;
use crate::{BACKEND, ServerStore, Transport, watch};

/// Attempts of a read whose stream broke.
const ATTEMPTS: u32 = 4;

#[async_trait]
impl Backend for ServerStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn get(&self, key: &Key) -> Result<Option<Object>> {
        let transport = self.transport();
        let late = || Err(Error::unavailable(BACKEND, transport.servers.why_none()));
        let reading = tokio::time::timeout(transport.servers.options.timeout, read(transport, key));
        reading.await.unwrap_or_else(|_| late())
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let request: v1::ListRequest = query.into();
        let servers = &self.transport().servers;
        let response = servers.call(|mut client| {
            let request = servers.request(request.clone());
            async move { client.list(request).await }
        });
        response.await.map_err(Fault::of_read)?.1.try_into()
    }

    async fn commit(&self, commit: Commit) -> Result<Committed> {
        if !commit.attachments.is_empty() {
            let capability = tenure::store::Capability::UserSql;
            return Err(Error::Unsupported { capability, backend: BACKEND });
        }
        match self.transport().exchange.call(Call::Commit(commit.into())).await {
            Ok(Answer::Commit(response)) => response.try_into(),
            Ok(_) => Err(strange()),
            Err(fault) => Err(fault.of_write()),
        }
    }

    async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        match self.transport().exchange.call(Call::Touch(touches.into())).await {
            Ok(Answer::Touch(response)) => response.try_into(),
            Ok(_) => Err(strange()),
            Err(fault) => Err(fault.of_write()),
        }
    }

    async fn watch(&self, request: &WatchRequest) -> Result<Watch> {
        watch::start(&self.background().servers, request, self.capabilities.history.is_some()).await
    }

    async fn close(&self) {
        self.close_transports();
    }
}

/// Reads, and reads again if the stream breaks: that changes nothing.
async fn read(transport: &Transport, key: &Key) -> Result<Option<Object>> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let call = Call::Get(v1::GetRequest { key: Some(key.into()) });
        match transport.exchange.call(call).await {
            Ok(Answer::Get(response)) => {
                return response.object.map(Object::try_from).transpose();
            }
            Ok(_) => return Err(strange()),
            Err(fault @ Fault::No(_)) => return Err(fault.of_read()),
            Err(fault) if attempt >= ATTEMPTS => return Err(fault.of_read()),
            Err(_) => {}
        }
    }
}

/// An answer to something else than what was asked: nobody can tell what was done.
fn strange() -> Error {
    Error::unknown(BACKEND, "its answer is not one to this question; are both of the same version?")
}
