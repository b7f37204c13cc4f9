//! Touches: many at once, each with an answer of its own.

use std::time::Duration;

use tenure::Error;
use tenure::store::{Touch, Touched};

use super::object::key;
use super::{ms_up, need};
use crate::v1;

impl From<Vec<Touch>> for v1::TouchRequest {
    fn from(touches: Vec<Touch>) -> Self {
        let touch = |touch: Touch| v1::Touch {
            key: Some(touch.key.into()),
            revision: touch.revision,
            ttl_ms: ms_up(touch.ttl),
        };
        Self { touches: touches.into_iter().map(touch).collect() }
    }
}

impl TryFrom<v1::TouchRequest> for Vec<Touch> {
    type Error = Error;

    fn try_from(request: v1::TouchRequest) -> Result<Self, Error> {
        let touch = |touch: v1::Touch| {
            Ok(Touch {
                key: key(touch.key)?,
                revision: touch.revision,
                ttl: Duration::from_millis(touch.ttl_ms),
            })
        };
        request.touches.into_iter().map(touch).collect()
    }
}

impl From<Vec<tenure::Result<Touched>>> for v1::TouchResponse {
    fn from(touched: Vec<tenure::Result<Touched>>) -> Self {
        use v1::touched::Outcome;
        let one = |touched: tenure::Result<Touched>| v1::Touched {
            outcome: Some(match touched {
                Ok(life) => {
                    Outcome::Life(v1::Life { revision: life.revision, ttl_ms: ms_up(life.ttl) })
                }
                Err(error) => Outcome::Error(Box::new((&error).into())),
            }),
        };
        Self { touched: touched.into_iter().map(one).collect() }
    }
}

impl TryFrom<v1::TouchResponse> for Vec<tenure::Result<Touched>> {
    type Error = Error;

    fn try_from(response: v1::TouchResponse) -> Result<Self, Error> {
        use v1::touched::Outcome;
        let one = |touched: v1::Touched| {
            Ok(match need(touched.outcome, "outcome of a touch")? {
                Outcome::Life(life) => {
                    Ok(Touched { revision: life.revision, ttl: Duration::from_millis(life.ttl_ms) })
                }
                Outcome::Error(error) => Err((*error).into()),
            })
        };
        response.touched.into_iter().map(one).collect()
    }
}
