//! What programs know of what comes. For whoever may read the files; priorities for those who may change things.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use weightfs::control::{Hinted, InUse, InUseHint, PriorityHint, QueueHint, VramHint};

use super::act::done;
use crate::api::answer::Sent;
use crate::api::pool::Effort;
use crate::api::{Answer, Api};
use crate::control::rights::Peer;

/// These files are used now.
#[utoipa::path(
    post, path = "/v1/hints/in-use", tag = "hints", request_body = InUseHint, responses((status = 200, body = InUse)),
)]
pub async fn in_use(State(api): State<Api>, peer: Peer, Sent(hint): Sent<InUseHint>) -> Answer {
    api.run(peer, Effort::Work, StatusCode::OK, move |control| control.hint_in_use(&peer, &hint)).await
}

/// They are not used any more.
#[utoipa::path(
    delete, path = "/v1/hints/in-use/{id}", tag = "hints",
    params(("id" = String, Path, description = "As the mark was answered")),
    responses((status = 204, description = "The mark is taken back")),
)]
pub async fn end_in_use(State(api): State<Api>, peer: Peer, Path(id): Path<String>) -> Answer {
    api.run(peer, Effort::Glance, StatusCode::OK, move |control| control.end_in_use(&peer, &id)).await.map(done)
}

/// How much a file matters.
#[utoipa::path(
    post, path = "/v1/hints/priority", tag = "hints", request_body = PriorityHint,
    responses((status = 200, body = Hinted)),
)]
pub async fn priority(State(api): State<Api>, peer: Peer, Sent(hint): Sent<PriorityHint>) -> Answer {
    api.steer(peer, Some(&hint.path.clone()), move |control| control.hint_priority(&hint)).await
}

/// What will be loaded, in order. It is read ahead in that order, and what is needed last goes first.
#[utoipa::path(
    post, path = "/v1/hints/queue", tag = "hints", request_body = QueueHint, responses((status = 200, body = Hinted)),
)]
pub async fn queue(State(api): State<Api>, peer: Peer, Sent(hint): Sent<QueueHint>) -> Answer {
    api.run(peer, Effort::Work, StatusCode::OK, move |control| control.hint_queue(&peer, &hint)).await
}

/// What is wholly in the memory of a GPU.
#[utoipa::path(
    post, path = "/v1/hints/vram", tag = "hints", request_body = VramHint, responses((status = 200, body = Hinted)),
)]
pub async fn vram(State(api): State<Api>, peer: Peer, Sent(hint): Sent<VramHint>) -> Answer {
    api.run(peer, Effort::Work, StatusCode::OK, move |control| control.hint_vram(&peer, &hint)).await
}
