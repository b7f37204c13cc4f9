//! Reaping: what is left to do for a lease that ended without a release.
//!
//! The lease itself vanishes at its expiry, so a reapable one writes a second, lasting record in the
//! commit that acquires it, under its own nonce. The release takes that record along. A reaper that finds
//! it without its lease removes it in the commit that runs the hook; since a record can be removed
//! only once, the hook takes effect once per lease, however many coordinators reap.
//!
//! A caller that cannot pass a hook to a coordinator, because it is elsewhere, lists what is left and reaps it
//! one by one, each together with a commit of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::flaws::{Flaw, planted};
use crate::lease::coordinator::prefixes;
use crate::lease::hooks::{HookContext, ReapHook, is_worth_asking_again};
use crate::lease::inner::Inner;
use crate::lease::record::{
    LEASE, LeaseInfo, LeaseRecord, ORPHAN, OrphanRecord, decode, tagged, untagged,
};
use crate::lease::{Coordinator, Namespace, Owner};
use crate::store::{Capability, Commit, Expect, Query};
use crate::{Error, Key, Object, Result};

/// A hook that meets a conflict is asked again, so often.
const ATTEMPTS: u32 = 5;

impl Coordinator {
    /// What is left to reap in a namespace, also below it if asked, or everywhere: the leases that ended
    /// without a release, as they were. What cannot be read is left out, and logged.
    pub async fn orphans(
        &self,
        namespace: Option<&Namespace>,
        children: bool,
    ) -> Result<Vec<LeaseInfo>> {
        let inner = self.inner();
        able(inner)?;
        let everywhere = || vec![String::new()];
        let mut left = Vec::new();
        for prefix in namespace.map_or_else(everywhere, |own| prefixes(own, children)) {
            list(inner, &prefix, &mut left).await?;
        }
        Ok(left)
    }

    /// Reaps one of [`Coordinator::orphans`]: the lease with this id that was acquired under this nonce.
    /// The commit applies with it or not at all, so it takes effect once, however many reap. `false` if
    /// it has been reaped: by somebody else, or by an earlier attempt whose answer was lost.
    ///
    /// # Errors
    /// [`Error::Held`] if the lease has not ended. If the outcome is unknown, ask again.
    pub async fn reap_one(
        &self,
        id: &str,
        nonce: &str,
        revision: u64,
        commit: Commit,
    ) -> Result<bool> {
        let inner = self.inner();
        able(inner)?;
        let key = Key::new(ORPHAN, tagged(id, nonce));
        let Some(object) = inner.store.get(&key).await? else { return Ok(false) };
        let living = living(inner, std::slice::from_ref(&object)).await?;
        if let (None, Some(lease)) = (dead(inner, &object, &living)?, living.get(id)) {
            let info = LeaseInfo::read(lease, inner.backend())?;
            let (scope, holder) = (info.id, Some(info.holder.to_string()));
            let expires_in = info.expires_in.unwrap_or_default();
            return Err(Error::Held { scope, holder, token: info.token, expires_in });
        }
        // What has ended stays so: its nonce is never drawn again.
        let removal = Commit::new().delete(key.clone(), Expect::Revision(revision));
        match inner.store.commit(removal.and(commit)).await {
            Ok(_) => {
                tracing::info!(lease = id, nonce, "reaped");
                Ok(true)
            }
            Err(Error::NotFound { key: gone }) if gone == key => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Nothing is ever left to reap on a store of single objects, which must not look like a job well done.
fn able(inner: &Inner) -> Result<()> {
    let capability = Capability::MultiObjectCommits;
    match inner.multi() {
        true => Ok(()),
        false => Err(Error::Unsupported { capability, backend: inner.backend() }),
    }
}

/// Whether this lease leaves something to reap.
pub(crate) async fn leaves_orphan(inner: &Inner, lease: &LeaseInfo) -> Result<bool> {
    let orphan = Key::new(ORPHAN, tagged(&lease.id, &lease.nonce));
    Ok(inner.multi() && inner.store.get(&orphan).await?.is_some())
}

/// Reaps all that is left under a prefix. One that fails does not hold up the others; its error is
/// told when they are done. A store that cannot be reached ends it at once.
pub(crate) async fn reap(inner: &Inner, prefix: &str, hook: &dyn ReapHook) -> Result<usize> {
    able(inner)?;
    let mut reaped = 0;
    let mut failed = None;
    let mut query = Query::new(ORPHAN).prefix(prefix);
    loop {
        // Orphan first, leases after: a lease that is missing from the later list has ended.
        let page = inner.store.list(&query).await?;
        let living = living(inner, &page.objects).await?;
        for object in &page.objects {
            match reap_if_dead(inner, object, &living, hook).await {
                Ok(done) => reaped += usize::from(done),
                Err(error) if concerns_one(&error) => {
                    tracing::warn!(%error, orphan = %object.key, "not reaped; going on");
                    failed.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return failed.map_or(Ok(reaped), Err),
        }
    }
}

/// Whether the others can be reaped all the same.
pub(crate) fn concerns_one(error: &Error) -> bool {
    error.is_refusal() || matches!(error, Error::Corrupt { .. })
}

/// Adds all that is left under a prefix.
async fn list(inner: &Inner, prefix: &str, left: &mut Vec<LeaseInfo>) -> Result<()> {
    let mut query = Query::new(ORPHAN).prefix(prefix);
    loop {
        let page = inner.store.list(&query).await?;
        let living = living(inner, &page.objects).await?;
        for object in &page.objects {
            let orphan = dead(inner, object, &living);
            match orphan.and_then(|dead| dead.map(|dead| info(object, &dead)).transpose()) {
                Ok(dead) => left.extend(dead),
                Err(error) => tracing::warn!(%error, orphan = %object.key, "cannot be reaped"),
            }
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(()),
        }
    }
}

/// The payloads of the leases that live, among those whose orphan these are, by id.
async fn living(inner: &Inner, orphan: &[Object]) -> Result<BTreeMap<String, Object>> {
    let id = |object: &Object| untagged(&object.key.id).map(|(lease, _)| lease.to_owned());
    let ids: BTreeSet<String> = orphan.iter().filter_map(id).collect();
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(BTreeMap::new()) };
    // An id holds no control characters, so nothing lies between it and this.
    let query = Query::new(LEASE).from(first.clone()).until(format!("{last}\u{1}"));
    let leases = inner.store.list_all(&query).await?;
    Ok(leases.into_iter().map(|object| (object.key.id.clone(), object)).collect())
}

async fn reap_if_dead(
    inner: &Inner,
    object: &Object,
    living: &BTreeMap<String, Object>,
    hook: &dyn ReapHook,
) -> Result<bool> {
    match dead(inner, object, living)? {
        Some(orphan) => reap_with(inner, object, &info(object, &orphan)?, hook).await,
        None => Ok(false),
    }
}

/// What these orphan are of, unless it lives.
fn dead(
    inner: &Inner,
    object: &Object,
    living: &BTreeMap<String, Object>,
) -> Result<Option<OrphanRecord>> {
    let orphan: OrphanRecord = decode(object, inner.backend())?;
    // One that cannot be read may be the very one, so nothing is concluded from it.
    let present = living.get(&orphan.lease);
    let present = present.map(|lease| decode::<LeaseRecord>(lease, inner.backend())).transpose()?;
    let lives = present.is_some_and(|lease| lease.nonce == orphan.record.nonce);
    Ok((!lives).then_some(orphan))
}

/// The lease as it was.
fn info(object: &Object, orphan: &OrphanRecord) -> Result<LeaseInfo> {
    let record = &orphan.record;
    Ok(LeaseInfo {
        id: orphan.lease.clone(),
        holder: Owner::from_parts(&record.holder, &record.start)?,
        token: object.token,
        nonce: record.nonce.clone(),
        acquired_at_ms: record.acquired_at_ms,
        ttl: Duration::ZERO,
        expires_in: None,
        metadata: record.metadata.clone(),
        revision: object.revision,
    })
}

fn expecting(orphan: &Object) -> Expect {
    match planted(Flaw::ReapsTwice) {
        true => Expect::Any,
        false => Expect::Revision(orphan.revision),
    }
}

async fn reap_with(
    inner: &Inner,
    object: &Object,
    info: &LeaseInfo,
    hook: &dyn ReapHook,
) -> Result<bool> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let mut draft = HookContext { store: &inner.store, commit: Commit::new() };
        hook.will_reap(info, &mut draft).await?;
        let removal = Commit::new().delete(object.key.clone(), expecting(object));
        match inner.store.commit(removal.and(draft.commit)).await {
            Ok(_) => {
                tracing::info!(lease = %info.id, holder = %info.holder, "reaped");
                return Ok(true);
            }
            // Somebody else has reaped it.
            Err(Error::NotFound { key } | Error::Conflict { key, .. }) if key == object.key => {
                return Ok(false);
            }
            Err(error) if error.is_unknown() => {
                if inner.store.get(&object.key).await?.is_none() {
                    // By us or by another; either way it is done, and counted once at most.
                    return Ok(true);
                }
                last = Some(error);
            }
            Err(error) if is_worth_asking_again(&error) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::unavailable(inner.backend(), "it could not be reaped")))
}
