//! Touches: the same object again, for another life.
//!
//! NATS has no way to prolong a message, so a touch publishes the object once more, with the sequence
//! that it replaces and a new time to live. The message carries the revision that the object has, so
//! readers see no change and no watch is told.

use futures::stream::{self, StreamExt as _};
use tenure::backend::decide::{Now, decide_touch};
use tenure::store::{Touch, Touched};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::commit::{Single, attempts, pause};
use crate::publish::{Published, Replacement};
use crate::shared::Shared;
use crate::stored::Known;

/// Touches on their way at once.
const AT_ONCE: usize = 256;

impl Shared {
    /// Each stands alone; the answers are in the order of the questions.
    pub(crate) async fn touch(&self, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
        let answers = touches.into_iter().map(|touch| self.touch_one(touch));
        Ok(stream::iter(answers).buffered(AT_ONCE).collect().await)
    }

    async fn touch_one(&self, touch: Touch) -> Result<Touched> {
        let subject = self.subjects.of(&touch.key);
        let (mut base, mut fresh) = match self.cache.get(&subject) {
            Some(base) => (base, false),
            None => (self.look(&subject, &touch.key).await?, true),
        };
        for attempt in attempts() {
            match prolonged(&touch, &base) {
                Ok((replacement, touched)) => {
                    match self.publish(&subject, &base, replacement).await? {
                        Published::Stored(_) => return Ok(touched),
                        Published::Refused => pause(attempt).await,
                    }
                }
                Err(error) if fresh => return Err(error),
                Err(_) => {}
            }
            (base, fresh) = (self.look(&subject, &touch.key).await?, true);
        }
        Err(Error::unavailable(BACKEND, format!("others wrote {} first each time", touch.key)))
    }
}

fn prolonged(touch: &Touch, base: &Known) -> Result<(Replacement, Touched)> {
    let row = Single(base).as_row();
    let now = Now { store_ms: 0, wall_ms: 0 };
    let (_, touched) = decide_touch(touch, row.as_ref(), now)?;
    let object = base.object.clone();
    let object = object.ok_or_else(|| Error::NotFound { key: touch.key.clone() })?;
    Ok((Replacement::Object { object, life: Some(touch.ttl) }, touched))
}
