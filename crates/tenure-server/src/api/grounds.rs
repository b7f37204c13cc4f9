//! What a stream rests on: its caller is known, and may still read what it asked for.
//!
//! Permissions are looked up whenever a caller asks for something. On a stream it asks once, so they are
//! looked up again for as long as it is open.

use std::borrow::Cow;

use super::View;
use crate::Fault;
use crate::auth::Action;

/// What the caller of a stream must still be allowed for it to go on.
#[derive(Clone)]
pub struct Grounds {
    view: View,
    needs: Vec<(Action, Extent)>,
}

#[derive(Clone)]
enum Extent {
    /// All of this.
    All(String),
    /// Something or other; each event is judged by itself.
    Some,
}

impl View {
    /// Refuses a stream that rests on what the caller may not read.
    pub(super) fn grounds<const N: usize>(
        &self,
        needs: [(Action, Cow<'_, str>); N],
    ) -> Result<Grounds, Fault> {
        let all = |(action, all): (Action, Cow<'_, str>)| (action, Extent::All(all.into_owned()));
        let needs = needs.into_iter().map(all).collect();
        let grounds = Grounds { view: self.clone(), needs };
        grounds.still()?;
        Ok(grounds)
    }

    /// A stream that shows what the caller may read, as long as that is anything.
    pub(super) fn some_grounds(&self, action: Action) -> Grounds {
        Grounds { view: self.clone(), needs: vec![(action, Extent::Some)] }
    }
}

impl Grounds {
    /// Who reads the stream, and what they see.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Refuses whoever is not known, or not allowed all of it, any more.
    pub fn still(&self) -> Result<(), Fault> {
        self.view.caller.still()?;
        self.needs.iter().try_for_each(|(action, extent)| match extent {
            Extent::All(resource) => self.view.require(*action, resource),
            Extent::Some if self.view.caller.may_some(*action) => Ok(()),
            Extent::Some => self.view.require(*action, "*"),
        })
    }

    /// Resolves when that is so.
    pub async fn gone(&self) -> Fault {
        self.view.caller.gone(|| self.still()).await
    }
}
