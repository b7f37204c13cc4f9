//! A call with thousands of touches, split into shares for the sessions that touch.
//!
//! Touches of different objects do not depend on each other, so they need not share a transaction. Several
//! sessions use several cores of the server. Small transactions also leave room on the pages for the next
//! versions of the rows.

use futures::future::join_all;
use tenure::store::{Touch, Touched};
use tenure::{Error, Result};

use crate::shared::Shared;
use crate::touch::{SHARE, TOUCH_BYTES, in_part};

/// Touches everything, one answer for each.
pub(crate) async fn touch(shared: &Shared, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
    if touches.len() <= SHARE {
        return ask(shared, touches).await;
    }
    let count = touches.len();
    let (places, shares): (Vec<_>, Vec<_>) = shares(touches).into_iter().unzip();
    let answers = join_all(shares.into_iter().map(|share| ask(shared, share))).await;
    let mut results: Vec<Option<Result<Touched>>> = vec![None; count];
    let (mut done, mut failed) = (false, None::<Error>);
    for (places, answer) in places.into_iter().zip(answers) {
        match answer {
            Ok(answers) => {
                done = true;
                for (place, answer) in places.into_iter().zip(answers) {
                    results[place] = Some(answer);
                }
            }
            Err(error) if failed.as_ref().is_none_or(|failed| !failed.is_unknown()) => {
                failed = Some(error);
            }
            Err(_) => {}
        }
    }
    match failed {
        None => Ok(results.into_iter().flatten().collect()),
        // To say that nothing was done would be wrong.
        Some(error) if done => Err(in_part(&error)),
        Some(error) => Err(error),
    }
}

async fn ask(shared: &Shared, touches: Vec<Touch>) -> Result<Vec<Result<Touched>>> {
    let bytes = touches.len() * TOUCH_BYTES;
    shared.touches.ask(touches, bytes).await?
}

/// Shares of about the same size, each with the places that its touches had. All touches of an object
/// are in one share, in the order they came.
fn shares(touches: Vec<Touch>) -> Vec<(Vec<usize>, Vec<Touch>)> {
    let size = touches.len().div_ceil(touches.len().div_ceil(SHARE));
    let mut all: Vec<(usize, Touch)> = touches.into_iter().enumerate().collect();
    all.sort_by(|(_, a), (_, b)| a.key.cmp(&b.key));
    let mut shares: Vec<(Vec<usize>, Vec<Touch>)> = Vec::new();
    for (place, touch) in all {
        match shares.last_mut() {
            Some((places, share))
                if share.len() < size
                    || share.last().is_some_and(|last: &Touch| last.key == touch.key) =>
            {
                places.push(place);
                share.push(touch);
            }
            _ => shares.push((vec![place], vec![touch])),
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tenure::Key;

    #[test]
    fn an_object_is_in_one_share_and_nothing_is_lost() {
        let touch = |n: usize, revision| Touch {
            key: Key::new("k", (n * 7919 % 10_007).to_string()),
            revision,
            ttl: Duration::from_secs(1),
        };
        let touches: Vec<Touch> =
            (0..10_000).map(|n| touch(n, 1)).chain((0..10_000).map(|n| touch(n, 2))).collect();
        let shares = shares(touches.clone());
        assert!(shares.len() > 2 && shares.iter().all(|(_, share)| share.len() <= SHARE + 1));
        let mut seen = vec![None; touches.len()];
        for (number, (places, share)) in shares.iter().enumerate() {
            for (place, touch) in places.iter().zip(share) {
                assert_eq!(touches[*place], *touch);
                assert_eq!(seen[*place].replace(number), None);
            }
            let twice = share.windows(2).filter(|pair| pair[0].key == pair[1].key);
            assert!(twice.clone().all(|pair| pair[0].revision < pair[1].revision));
            assert_eq!(twice.count() * 2, share.len());
        }
        assert!(seen.iter().all(Option::is_some));
    }
}
