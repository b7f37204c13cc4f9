//! Reads, all of them from the bucket's leader.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::json;
use tenure::store::{Page, Query};
use tenure::{Key, Object, Result};

use crate::shared::Shared;
use crate::stored::{GetReply, Known, Stored};

/// Objects that a page looks at, at most: a selector that matches little is answered in steps.
const SCAN: usize = 2_000;
/// Reads on their way at once.
const AT_ONCE: usize = 128;

impl Shared {
    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Object>> {
        let subject = self.subjects.of(key);
        let known = self.look(&subject, key).await?;
        if known.lives_until.is_some() && self.time.is_stale() {
            self.last_sequence().await?;
        }
        Ok(self.object(known))
    }

    /// The present state of a subject, as its leader sees it.
    pub(crate) async fn look(&self, subject: &str, key: &Key) -> Result<Known> {
        let Some(stored) = self.last(subject).await? else { return Ok(Known::NOTHING) };
        let mut known = stored.known(key.clone(), &self.time)?;
        self.cache.update(subject, known.clone());
        // If the cache has this very message, it knows better for how long it is not settled.
        let before = self.cache.get(subject).filter(|before| before.sequence == known.sequence);
        known.unsettled_until = before.map_or(known.unsettled_until, |b| b.unsettled_until);
        Ok(known)
    }

    /// The last message of a subject.
    pub(crate) async fn last(&self, subject: &str) -> Result<Option<Stored>> {
        let question = json!({ "last_by_subj": subject });
        self.read::<GetReply>("STREAM.MSG.GET", &question).await?.message()
    }

    /// The message with this sequence.
    pub(crate) async fn at(&self, sequence: u64) -> Result<Option<Stored>> {
        let question = json!({ "seq": sequence });
        self.read::<GetReply>("STREAM.MSG.GET", &question).await?.message()
    }

    /// What a reader sees, with what is left of its life.
    fn object(&self, known: Known) -> Option<Object> {
        let mut object = (*known.object?).clone();
        let now = self.time.uptime();
        object.expires_in = known.lives_until.map(|end| end.saturating_sub(now));
        Some(object)
    }

    /// The leader lists the subjects, which are sorted here; then each object of the page is read.
    pub(crate) async fn list(&self, query: &Query) -> Result<Page> {
        let (subjects, revision) = self.subjects_of(&self.subjects.of_kind(&query.kind)).await?;
        let mut found: Vec<(Key, String)> = subjects
            .into_iter()
            .filter_map(|subject| Some((self.subjects.key(&subject)?, subject)))
            .filter(|(key, _)| query.range.contains(&key.id))
            .filter(|(key, _)| query.after.as_ref().is_none_or(|after| key.id > *after))
            .collect();
        found.sort_unstable();
        let mut objects = Vec::new();
        let mut looked = 0;
        while looked < found.len() && looked < SCAN && objects.len() < query.limit {
            let wanted = query.limit - objects.len();
            let some = &found[looked..found.len().min(looked + wanted)];
            looked += some.len();
            objects.extend(self.read_some(some).await?.into_iter().filter(|o| query.matches(o)));
        }
        let next = (looked < found.len()).then(|| found[looked - 1].0.id.clone());
        Ok(Page { objects, next, revision })
    }

    async fn read_some(&self, some: &[(Key, String)]) -> Result<Vec<Object>> {
        let reads: Vec<_> = some.iter().map(|(key, subject)| self.look(subject, key)).collect();
        let known: Vec<Known> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        Ok(known.into_iter().filter_map(|known| self.object(known)).collect())
    }
}
