//! Slots, held on behalf of callers who are elsewhere.

use tenure::lease::{LeaseGrant, Namespace, SlotInfo, SlotsSize, WaiterInfo};

use super::records::group;
use super::{AcquireTerms, View};
use crate::Fault;
use crate::auth::Action;
use crate::auth::audit::Notable;

/// A group of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotsStatus {
    /// How many there are, if the group exists.
    pub size: Option<SlotsSize>,
    /// Who has which.
    pub holders: Vec<SlotInfo>,
    /// Who waits, first come first.
    pub waiters: Vec<WaiterInfo>,
}

impl View {
    /// Acquires one of `count` slots of a group for an owner. Tells which.
    pub async fn acquire_slot(
        &self,
        namespace: &Namespace,
        count: u32,
        asked: &AcquireTerms,
    ) -> Result<(LeaseGrant, u32), Fault> {
        let group = group(namespace.as_str());
        self.require(Action::LeasesHold, &group)?;
        let terms = self.terms(asked)?;
        let slots = self.part.coordinator.slots(namespace);
        let acquiring = std::pin::pin!(slots.acquire(count, &terms));
        let slot = self.waiting(asked, &group, acquiring).await?;
        let index = slot.index();
        Ok((slot.into_lease().detach(), index))
    }

    /// Changes how many slots a group has, if given a version only from that one.
    pub async fn resize(
        &self,
        namespace: &Namespace,
        expect_version: Option<u64>,
        count: u32,
    ) -> Result<(), Fault> {
        let group = group(namespace.as_str());
        self.require(Action::SlotsResize, &group)?;
        let (action, resource) = (Action::SlotsResize, group);
        let noting = self.noting(vec![Notable { action, resource, what: "resized" }]);
        let slots = self.part.coordinator.slots(namespace);
        let resized = match expect_version {
            Some(version) => slots.resize_from(version, count).await,
            None => slots.resize(count).await,
        };
        noting.end(&resized);
        Ok(resized?)
    }

    /// A group: its count, who holds what, who waits.
    pub async fn show_slots(&self, namespace: &Namespace) -> Result<SlotsStatus, Fault> {
        self.require(Action::LeasesRead, &group(namespace.as_str()))?;
        let slots = self.part.coordinator.slots(namespace);
        let (size, holders) = (slots.size().await?, slots.holders().await?);
        Ok(SlotsStatus { size, holders, waiters: slots.waiters().await? })
    }
}
