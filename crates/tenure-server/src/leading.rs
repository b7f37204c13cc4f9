//! Which replica leads: of all servers on a store, one holds a scope of the servers' own.
//!
//! The leader has no work of its own yet. It is the scope under which work will run that only one replica
//! may do, and until then it tells people which one that would be. Standbys wait in line like anybody
//! else, so they cost a store that notifies nothing. The leader lets go as soon as the server is told to
//! leave, before it has answered what was begun: the next one is leading by then.

use std::net::SocketAddr;

use tenure::gate::Gate;
use tenure::lease::Terms;

use crate::Fault;
use crate::api::Api;
use crate::auth::Caller;

/// The scope that replicas lead.
pub(crate) const LED: &str = "tenure.server/main";

/// Campaigns until the server leaves. A store that cannot be reached is waited for; one that cannot hold
/// the scope has no leader, and is served all the same.
pub(crate) async fn campaign(api: Api, address: Option<SocketAddr>) {
    if let Err(fault) = lead(&api, address).await {
        tracing::warn!(%fault, scope = LED, "this replica does not campaign");
    }
}

async fn lead(api: &Api, address: Option<SocketAddr>) -> Result<(), Fault> {
    let view = api.view(&Caller::anybody())?;
    let mut terms = Terms::new();
    if let Some(address) = address {
        terms = terms.metadata("address", address.to_string());
    }
    let gate = Gate::new(view.coordinator(), LED.parse()?).terms(terms);
    Ok(gate.run(api.shutdown().leaving()).await?)
}
