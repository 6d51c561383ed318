//! Questions and answers in the form of HTTP: bodies and queries in, JSON and problem documents out.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;
use weightfs::control::{ControlError, MAX_BODY, Problem};

/// How long a client may take to send the body of its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request that is not carried out.
#[derive(Debug)]
pub struct Refused(pub ControlError);

impl From<ControlError> for Refused {
    fn from(error: ControlError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let problem = Problem::from(&self.0);
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = plain(status, "application/problem+json", body);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// JSON with this status.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => plain(status, "application/json", body),
        Err(error) => Refused(ControlError::Failed(format!("the answer cannot be written: {error}"))).into_response(),
    }
}

/// An answer of this type, which is true now and not to be kept.
pub fn plain(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A body of JSON, of a bounded length, that came in time.
pub struct Sent<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Sent<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refused> {
        if !is_json(request.headers()) {
            return Err(ControlError::MediaType.into());
        }
        let body = receive(request.into_body()).await?;
        // A list of the values would be taken for the fields in their order.
        if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Err(ControlError::BadRequest("its body is no JSON object".to_owned()).into());
        }
        serde_json::from_slice(&body).map(Self).map_err(|error| ControlError::BadRequest(error.to_string()).into())
    }
}

/// Browsers send other types without asking first, which this keeps out.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

async fn receive(body: Body) -> Result<Bytes, ControlError> {
    let received = tokio::time::timeout(PATIENCE, Limited::new(body, MAX_BODY).collect()).await;
    match received.map_err(|_| ControlError::TimedOut)? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ControlError::TooLarge(MAX_BODY as u64)),
        Err(error) => Err(ControlError::BadRequest(format!("its body cannot be read: {error}"))),
    }
}

/// The query of a request.
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|error| ControlError::BadRequest(error.body_text()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_by_its_name() {
        let of = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            is_json(&headers)
        };
        assert!(of("application/json") && of("Application/JSON; charset=utf-8"));
        assert!(!of("text/plain") && !of("application/jsonp") && !is_json(&HeaderMap::new()));
    }
}
