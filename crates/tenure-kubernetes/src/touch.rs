//! Renewals: one PUT each, several at a time.
//!
//! A holder renews what it wrote last, so it needs no read before the PUT. If the PUT is refused, the
//! Lease is read and judged like everywhere else.

use futures::stream::{self, StreamExt};
use tenure::backend::decide::decide_touch;
use tenure::store::{Touch, Touched};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::commit::send;
use crate::error::Failure;
use crate::record;
use crate::shared::{Shared, row};

/// Renewals on their way at once.
const AT_ONCE: usize = 16;
/// Times that somebody else may be faster. One is enough to find out who; the rest is for edits of
/// the Lease that leave its holder alone.
const ATTEMPTS: u32 = 4;

/// Touches each, and answers in order.
pub(crate) async fn touch(shared: &Shared, touches: Vec<Touch>) -> Vec<Result<Touched>> {
    stream::iter(touches)
        .map(|touch| async move { touch_one(shared, &touch).await })
        .buffered(AT_ONCE)
        .collect()
        .await
}

async fn touch_one(shared: &Shared, touch: &Touch) -> Result<Touched> {
    let id = &touch.key.id;
    let name = shared.names.encode(id);
    let mut remembered = shared.remembered(&name);
    for _ in 0..ATTEMPTS {
        let fresh = remembered.is_none();
        let read = match remembered.take() {
            Some(read) => Some(read),
            None => shared.read(&name).await?,
        };
        let Some(read) = read else { return Err(Error::NotFound { key: touch.key.clone() }) };
        let now = shared.now();
        let before = row(&read.lease, read.sight, id)?;
        match decide_touch(touch, before.as_ref(), now) {
            Ok(_) => {}
            Err(_) if !fresh => continue,
            Err(error) => return Err(error),
        }
        let Some(before) = before else { continue };
        let lease = record::touch(&read.lease, &before.object, touch.ttl, now.wall_ms);
        match send(shared, &lease, true).await {
            Ok(read) => {
                return Ok(Touched { revision: read.lease.revision()?, ttl: touch.ttl });
            }
            Err(Failure::Overtaken) => {}
            Err(failure) => return Err(failure.of_write()),
        }
    }
    Err(Error::unavailable(BACKEND, format!("others changed {} each time", touch.key)))
}
