//! Lists. The server sorts Leases by name and knows no prefixes, so a page is cut from all of them.
//!
//! That costs a list of the whole namespace for each page, which is what electors' namespaces are
//! small enough for. A continue token keeps the server's pages at one revision, and each page here is
//! cut anew, so an object that exists throughout appears exactly once.

use tenure::store::{Page, Query};
use tenure::{Object, Result};

use crate::cleanup;
use crate::shared::{Shared, row};

/// One page of what is held.
pub(crate) async fn list(shared: &Shared, query: &Query) -> Result<Page> {
    let (leases, revision) = shared.all().await?;
    let mut objects = Vec::new();
    for lease in leases {
        let Some(id) = shared.id_of(&lease) else { continue };
        // Seen is seen, wanted or not: expiry counts from the first sight.
        let sight = shared.seen.observe(&lease, lease.revision()?, shared.clock.uptime());
        cleanup::delete_if_idle(shared, &lease, sight);
        if let Some(row) = row(&lease, sight, &id)?
            && let Some(object) = row.read(shared.now().store_ms)
            && query.matches(&object)
        {
            objects.push(object);
        }
    }
    Ok(cut(objects, query, revision))
}

fn cut(mut objects: Vec<Object>, query: &Query, revision: u64) -> Page {
    objects.sort_by(|a, b| a.key.id.cmp(&b.key.id));
    if let Some(after) = &query.after {
        objects.retain(|object| object.key.id.as_str() > after.as_str());
    }
    let more = objects.len() > query.limit;
    objects.truncate(query.limit);
    let next = objects.last().filter(|_| more).map(|object| object.key.id.clone());
    Page { objects, next, revision }
}
