//! What requests about leases say, in the library's types.

use std::time::Duration;

use tenure::lease::{LeaseEvent, LeaseInfo, Renewed, Wait};
use tenure_proto::convert::{lease_of, need};
use tenure_proto::v1;

use crate::Fault;
use crate::api::{AcquireTerms, HandOverTerms};

/// The terms of a request, which must have them.
pub(super) fn asked(terms: Option<v1::Terms>) -> Result<AcquireTerms, Fault> {
    let terms = need(terms, "terms")?;
    Ok(AcquireTerms {
        owner: terms.owner,
        ttl: (terms.ttl_ms > 0).then(|| Duration::from_millis(terms.ttl_ms)),
        wait: match (terms.wait_forever, terms.wait_ms) {
            (true, _) => Wait::Forever,
            (false, wait) => Wait::from(Duration::from_millis(wait)),
        },
        metadata: terms.metadata,
        reapable: terms.reapable,
    })
}

/// To whom a lease is to go; without terms to the first in line.
pub(super) fn handing_over(terms: Option<v1::HandOverTerms>) -> HandOverTerms {
    let terms = terms.unwrap_or_default();
    HandOverTerms {
        successor: Some(terms.successor).filter(|name| !name.is_empty()),
        expect_token: terms.expect_token,
        wait: (terms.wait_ms > 0).then(|| Duration::from_millis(terms.wait_ms)),
    }
}

pub(super) fn renewed_of(renewed: Result<Renewed, Fault>) -> v1::Renewed {
    let outcome = match renewed {
        Ok(renewed) => v1::renewed::Outcome::Renewal((&renewed).into()),
        Err(fault) => v1::renewed::Outcome::Error(fault.wire()),
    };
    v1::Renewed { outcome: Some(outcome) }
}

pub(super) fn event_of(event: &LeaseEvent) -> v1::LeaseEvent {
    let event = match event {
        LeaseEvent::Held(info) => v1::lease_event::Event::Held(lease_of(info)),
        LeaseEvent::Ended { id, cause, last } => v1::lease_event::Event::Ended(v1::Ended {
            scope: id.clone(),
            cause: v1::Cause::from(*cause).into(),
            last: last.as_ref().map(lease_of),
        }),
    };
    v1::LeaseEvent { event: Some(event) }
}

pub(super) fn leader_of(leader: Option<&LeaseInfo>) -> v1::LeaderResponse {
    v1::LeaderResponse { leader: leader.map(lease_of) }
}
