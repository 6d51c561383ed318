//! What can be asked, by its path.

pub mod act;
pub mod events;
pub mod hints;
pub mod look;
pub mod page;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::routing::{delete, get, post};
use weightfs::control::ControlError;

use super::Api;
use super::answer::Refused;
use crate::control::rights::Peer;

/// Every resource.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/status", get(look::status))
        .route("/v1/mounts", get(look::mounts))
        .route("/v1/files", get(look::files))
        .route("/v1/tensors", get(look::tensors))
        .route("/v1/explain", get(look::explain))
        .route("/v1/history", get(look::history))
        .route("/v1/doctor", get(look::doctor))
        .route("/v1/trace", get(look::trace))
        .route("/v1/trace/start", post(act::start_trace))
        .route("/v1/trace/stop", post(act::stop_trace))
        .route("/v1/jobs/{id}", get(look::job).delete(act::cancel))
        .route("/v1/events", get(events::events))
        .route("/v1/pin", post(act::pin))
        .route("/v1/unpin", post(act::unpin))
        .route("/v1/prefetch", post(act::prefetch))
        .route("/v1/evict", post(act::evict))
        .route("/v1/flush", post(act::flush))
        .route("/v1/budget", post(act::budget))
        .route("/v1/unmount", post(act::unmount))
        .route("/v1/upgrade", post(act::upgrade))
        .route("/v1/dashboard", post(page::dashboard))
        .route("/v1/hints/in-use", post(hints::in_use))
        .route("/v1/hints/in-use/{id}", delete(hints::end_in_use))
        .route("/v1/hints/priority", post(hints::priority))
        .route("/v1/hints/queue", post(hints::queue))
        .route("/v1/hints/vram", post(hints::vram))
        .route("/v1/openapi.json", get(look::description))
        .route("/metrics", get(look::metrics))
        .merge(page::files())
        .fallback(nothing)
        .method_not_allowed_fallback(other_method)
        .with_state(api)
}

async fn nothing(uri: Uri) -> Refused {
    ControlError::NotFound(format!("there is nothing at {}; /v1/openapi.json says what there is", uri.path())).into()
}

async fn other_method(method: axum::http::Method) -> Refused {
    ControlError::MethodNotAllowed(method.to_string()).into()
}

impl<S: Sync> FromRequestParts<S> for Peer {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let peer = parts.extensions.get::<Peer>().copied();
        peer.ok_or_else(|| ControlError::Failed("nobody knows who asks".to_owned()).into())
    }
}
