//! Queries and pages.

use tenure::store::{IdRange, Page, Query, Requirement, Selector};
use tenure::{Error, Object};

use crate::v1;
use crate::v1::requirement::Is;

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
            selector: String::new(),
            requirements: query.selector.0.iter().map(v1::Requirement::from).collect(),
            after: query.after.clone(),
            limit: u32::try_from(query.limit).unwrap_or(u32::MAX),
        }
    }
}

impl TryFrom<v1::ListRequest> for Query {
    type Error = Error;

    fn try_from(request: v1::ListRequest) -> Result<Self, Error> {
        let mut selector = match request.selector.as_str() {
            "" => Selector::default(),
            text => text.parse()?,
        };
        for requirement in request.requirements {
            selector.0.push(requirement.try_into()?);
        }
        let limit = if request.limit == 0 { PAGE } else { request.limit };
        Ok(Self {
            kind: request.kind,
            range: IdRange { from: request.from, until: request.until, prefix: request.prefix },
            name: request.name,
            selector,
            after: request.after,
            limit: super::size(u64::from(limit)),
        })
    }
}

impl From<&Requirement> for v1::Requirement {
    fn from(requirement: &Requirement) -> Self {
        let (label, is, values) = match requirement {
            Requirement::In(label, values) => (label, Is::In, values.clone()),
            Requirement::NotIn(label, values) => (label, Is::NotIn, values.clone()),
            Requirement::Exists(label) => (label, Is::Present, Vec::new()),
            Requirement::Absent(label) => (label, Is::Absent, Vec::new()),
        };
        Self { label: label.clone(), is: is.into(), values }
    }
}

impl TryFrom<v1::Requirement> for Requirement {
    type Error = Error;

    fn try_from(requirement: v1::Requirement) -> Result<Self, Error> {
        Ok(match requirement.is() {
            Is::In => Self::In(requirement.label, requirement.values),
            Is::NotIn => Self::NotIn(requirement.label, requirement.values),
            Is::Present => Self::Exists(requirement.label),
            Is::Absent => Self::Absent(requirement.label),
            Is::Unspecified => {
                return Err(Error::invalid(
                    "requirement",
                    "it does not say what the label is to be",
                ));
            }
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
