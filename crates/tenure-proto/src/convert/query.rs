//! Queries and pages.

use tenure::store::{IdRange, Page, Query};
use tenure::{Error, Object};

use crate::v1;

/// Objects a page unless the request says otherwise.
const PAGE: u32 = 100;

impl From<&Query> for v1::ListRequest {
    fn from(query: &Query) -> Self {
        Self {
            kind: query.kind.clone(),
            prefix: query.range.prefix.clone(),
            from: query.range.from.clone(),
            until: query.range.until.clone(),
            name: query.name.clone(),
            selector: query.selector.to_string(),
            after: query.after.clone(),
            limit: u32::try_from(query.limit).unwrap_or(u32::MAX),
        }
    }
}

impl TryFrom<v1::ListRequest> for Query {
    type Error = Error;

    fn try_from(request: v1::ListRequest) -> Result<Self, Error> {
        let limit = if request.limit == 0 { PAGE } else { request.limit };
        Ok(Self {
            kind: request.kind,
            range: IdRange { from: request.from, until: request.until, prefix: request.prefix },
            name: request.name,
            selector: match request.selector.as_str() {
                "" => Default::default(),
                text => text.parse()?,
            },
            after: request.after,
            limit: super::size(u64::from(limit)),
        })
    }
}

impl From<&Page> for v1::ListResponse {
    fn from(page: &Page) -> Self {
        Self {
            objects: page.objects.iter().map(v1::Object::from).collect(),
            next: page.next.clone(),
            revision: page.revision,
        }
    }
}

impl TryFrom<v1::ListResponse> for Page {
    type Error = Error;

    fn try_from(response: v1::ListResponse) -> Result<Self, Error> {
        Ok(Self {
            objects: response
                .objects
                .into_iter()
                .map(Object::try_from)
                .collect::<Result<_, _>>()?,
            next: response.next,
            revision: response.revision,
        })
    }
}
