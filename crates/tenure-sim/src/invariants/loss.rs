//! G6: loss is told once, its reason is true, and the first reason stays.

use tenure::lease::Loss;

use crate::history::{Guarantee::G6, Verdict, Violation};
use crate::truth::{End, Truth};

/// What a handle said before and says now.
pub fn keeps_its_story(who: &str, id: &str, first: Option<&Loss>, now: Option<&Loss>) -> Verdict {
    match (first, now) {
        (Some(first), Some(now)) if first != now => Err(Violation::new(
            G6,
            format!("{who} was told that {id} was {first}, and then that it was {now}"),
        )),
        (Some(first), None) => Err(Violation::new(
            G6,
            format!("{who} was told that {id} was {first}, and then that it is still held"),
        )),
        _ => Ok(()),
    }
}

/// Whether this reason is what happened.
pub fn is_true(truth: &Truth, who: &str, id: &str, token: u64, loss: &Loss) -> Verdict {
    let end = truth.tenure(id, token).and_then(|tenure| tenure.end.as_ref()).map(|(_, end)| end);
    let fine = match loss {
        // Whether the deadline had really come is a matter of G7.
        Loss::Expired => true,
        // Whoever passed it on itself has lost nothing.
        Loss::Taken { .. } if matches!(end, Some(End::HandedOver(_))) => false,
        Loss::Taken { by, token: taken } => truth
            .tenure(id, *taken)
            .is_some_and(|tenure| tenure.owner == *by && *taken > token && end.is_some()),
        Loss::Revoked { by: Some(by), .. } => *end_by(end) == **by,
        Loss::Revoked { by: None, .. } => matches!(end, Some(End::Revoked(_))),
        // Whoever has revoked its own cannot be told from one that released it, without a note.
        Loss::Released => matches!(end, Some(End::Released)) || end_by(end) == who,
        Loss::HandedOver { to } => match end {
            Some(End::HandedOver(next)) => {
                truth.tenure(id, *next).is_some_and(|tenure| tenure.owner == *to)
            }
            _ => false,
        },
    };
    if fine {
        return Ok(());
    }
    let end = end.map_or("it is still held".into(), |end| format!("{end:?}"));
    let message =
        format!("{who} was told that {id} with token {token} was {loss}; in truth: {end}");
    Err(Violation::new(G6, message))
}

/// Whether what a holder was told after it had let go is what happened. If something went wrong
/// meanwhile, gone is all it can know, and that only if its release was confirmed.
pub fn is_true_of_letting_go(
    truth: &Truth,
    who: &str,
    id: &str,
    token: u64,
    loss: &Loss,
    went: Went,
) -> Verdict {
    if *loss != Loss::Released || went == Went::Well {
        return is_true(truth, who, id, token, loss);
    }
    if went == Went::InDoubt || truth.holder(id) != Some(token) {
        return Ok(());
    }
    let message = format!("{who} has released {id} with token {token}, and it is still held");
    Err(Violation::new(G6, message))
}

/// How letting go went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Went {
    /// Nothing went wrong.
    Well,
    /// It was confirmed, though something went wrong.
    Confirmed,
    /// Something went wrong, and nobody knows what became of it.
    InDoubt,
}

fn end_by(end: Option<&End>) -> &str {
    match end {
        Some(End::Revoked(by)) => by,
        _ => "",
    }
}

/// No more tenures ended than began.
pub fn told_once(who: &str, began: u64, ended: u64) -> Verdict {
    if ended <= began {
        return Ok(());
    }
    let message = format!("{who} acquired {began} leases and was told of {ended} ends");
    Err(Violation::new(G6, message))
}
