//! What the caller of a stream must be allowed for as long as the stream is open.
//!
//! Permissions are checked with every request. A stream is one request that goes on, so its permissions are
//! checked again while it is open, and it ends when the caller is not known or not allowed any more.

use std::borrow::Cow;

use futures::stream::{self, Stream, StreamExt as _};

use super::View;
use crate::Fault;
use crate::auth::Action;
use crate::limits::Taken;

/// What the caller of a stream must still be allowed for it to go on.
#[derive(Clone)]
pub struct StreamAuthorisation {
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
    pub(super) fn authorise<const N: usize>(
        &self,
        needs: [(Action, Cow<'_, str>); N],
    ) -> Result<StreamAuthorisation, Fault> {
        let all = |(action, all): (Action, Cow<'_, str>)| (action, Extent::All(all.into_owned()));
        let needs = needs.into_iter().map(all).collect();
        let authorisation = StreamAuthorisation { view: self.clone(), needs };
        authorisation.check()?;
        Ok(authorisation)
    }

    /// A stream that shows what the caller may read, as long as that is anything.
    pub(super) fn authorise_some(&self, action: Action) -> StreamAuthorisation {
        StreamAuthorisation { view: self.clone(), needs: vec![(action, Extent::Some)] }
    }
}

impl StreamAuthorisation {
    /// Who reads the stream, and what they see.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Fails if the caller is not known or not allowed all of it any more.
    pub fn check(&self) -> Result<(), Fault> {
        self.view.caller.check()?;
        self.needs.iter().try_for_each(|(action, extent)| match extent {
            Extent::All(resource) => self.view.require(*action, resource),
            Extent::Some if self.view.caller.may_some(*action) => Ok(()),
            Extent::Some => self.view.require(*action, "*"),
        })
    }

    /// Resolves when `check` fails, with its fault.
    pub async fn revoked(&self) -> Fault {
        self.view.caller.revoked(|| self.check()).await
    }

    /// Passes on the items of a stream while the caller may see them. It ends with the stream, with the
    /// first failure, or when the server leaves, and keeps its room until then.
    pub fn stream<T: Send + 'static>(
        self,
        room: Taken,
        items: impl Stream<Item = Result<T, Fault>> + Send + 'static,
    ) -> impl Stream<Item = Result<T, StreamEnd>> + Send + 'static {
        let known = self.clone();
        // An item that comes between two checks of `revoked` is checked by itself.
        let items = items.map(move |item| known.check().and(item));
        let end = Box::pin(async move {
            tokio::select! {
                biased;
                () = self.view.api.shutdown().leaving() => StreamEnd::Leaving,
                fault = self.revoked() => StreamEnd::Failed(fault),
            }
        });
        let start = Some((Box::pin(items), end, room));
        stream::unfold(start, |open| async move {
            let (mut items, mut end, room) = open?;
            let item = tokio::select! {
                biased;
                end = &mut end => Err(end),
                item = items.next() => item?.map_err(StreamEnd::Failed),
            };
            let open = item.is_ok().then_some((items, end, room));
            Some((item, open))
        })
    }
}

/// Why a stream ended before its items did.
pub enum StreamEnd {
    /// The server leaves.
    Leaving,
    /// An item failed, or the caller may not see the stream any more.
    Failed(Fault),
}
