//! Reading: one object, or a page of them, as they are at one instant between commits.

use crate::files::Session;
use crate::inner::Inner;
use tenure::backend::decide::Row;
use tenure::store::{Page, Query};
use tenure::{Key, Object, Result};

/// Files opened for one page at most; a selector that matches little is answered in steps.
const LOOKS: usize = 4096;

impl Inner {
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Object>> {
        let _between_commits = self.files.shared()?;
        let now_ms = self.time.now_ms();
        let row = self.files.read_object(key)?.map(|stored| stored.row);
        row.map_or(Ok(None), |row| self.look(&row, now_ms))
    }

    pub(crate) fn list(&self, query: &Query) -> Result<Page> {
        let session = self.files.shared()?;
        let now_ms = self.time.now_ms();
        match &query.name {
            Some(name) => self.list_name(&session, query, name, now_ms),
            None => self.list_ids(&session, query, now_ms),
        }
    }

    fn list_name(&self, session: &Session, query: &Query, name: &str, now_ms: i64) -> Result<Page> {
        let mut page = Page { objects: Vec::new(), next: None, revision: session.head.revision };
        let Some(id) = self.files.read_name(&query.kind, name)? else { return Ok(page) };
        if query.after.as_ref().is_some_and(|after| id <= *after) {
            return Ok(page);
        }
        let stored = self.files.read_object(&Key::new(&query.kind, id))?;
        if let Some(stored) = stored.filter(|stored| query.matches(&stored.row.object)) {
            page.objects.extend(self.look(&stored.row, now_ms)?);
        }
        Ok(page)
    }

    fn list_ids(&self, session: &Session, query: &Query, now_ms: i64) -> Result<Page> {
        let mut page = Page { objects: Vec::new(), next: None, revision: session.head.revision };
        let ids = self.ids(&query.kind, session.head.revision)?;
        let first = match &query.after {
            Some(after) => ids.partition_point(|id| id <= after),
            None => 0,
        };
        let wanted = ids[first..].iter().skip_while(|id| id.as_str() < query.range.start());
        let mut last = None;
        for (looks, id) in wanted.take_while(|id| !query.range.is_past(id)).enumerate() {
            if looks == LOOKS {
                page.next = last;
                break;
            }
            let Some(stored) = self.files.read_object(&Key::new(&query.kind, id))? else {
                continue;
            };
            let object = self.look(&stored.row, now_ms)?;
            if let Some(object) = object.filter(|object| query.matches(object)) {
                if page.objects.len() == query.limit {
                    page.next = page.objects.last().map(|last| last.key.id.clone());
                    break;
                }
                page.objects.push(object);
            }
            last = Some(id.clone());
        }
        Ok(page)
    }

    /// What a reader sees, while the store is locked shared. What looks expired is read once more under
    /// the lock of its key: a touch that was decided in time may still be on its way to the disk, and an
    /// object must never seem gone and then be there again. An object found expired is noted, so that the
    /// next commit tidies up.
    fn look(&self, row: &Row, now_ms: i64) -> Result<Option<Object>> {
        let object = row.read(now_ms);
        if object.is_some() {
            return Ok(object);
        }
        let key = &row.object.key;
        let _no_touch = self.files.locks.keys(std::iter::once(key))?;
        let Some(stored) = self.files.read_object(key)? else { return Ok(None) };
        let object = stored.row.read(now_ms);
        if object.is_none() {
            self.expiries().set(key, stored.row.expires_at_ms);
        }
        Ok(object)
    }

    /// Learns when objects expire, a kind at a time.
    pub(crate) fn learn_expiries(&self) -> Result<()> {
        for kind in self.files.kinds()? {
            let ids = self.files.ids(&kind)?;
            for some in ids.chunks(256) {
                // Held for a moment only, so that commits go on meanwhile.
                let _between_commits = self.files.shared()?;
                for id in some {
                    let key = Key::new(&kind, id);
                    if let Ok(Some(stored)) = self.files.read_object(&key) {
                        self.expiries().set(&key, stored.row.expires_at_ms);
                    }
                }
            }
        }
        Ok(())
    }
}
