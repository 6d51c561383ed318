//! What is to be in RAM, and the daemon itself. For root, the daemon's user, the owner of the folder and the members of
//! `--control-group`; what the daemon does with its own rights is for the first two.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use weightfs::control::{
    BudgetRequest, EvictRequest, FlushRequest, Job, Outcome, PinRequest, PrefetchRequest, RamStatus, TraceStart,
    TraceStatus, TraceSummary, UnmountRequest, UnpinRequest, UpgradeRequest,
};

use crate::api::answer::Sent;
use crate::api::pool::Effort;
use crate::api::{Answer, Api};
use crate::control::rights::Peer;

/// Keep files in RAM for good, over restarts too.
#[utoipa::path(post, path = "/v1/pin", tag = "act", request_body = PinRequest, responses((status = 200, body = Outcome)))]
pub async fn pin(State(api): State<Api>, peer: Peer, Sent(request): Sent<PinRequest>) -> Answer {
    api.steer(peer, Some(&request.path.clone()), move |control| control.pin(&request)).await
}

/// Take pins back.
#[utoipa::path(
    post, path = "/v1/unpin", tag = "act", request_body = UnpinRequest, responses((status = 200, body = Outcome)),
)]
pub async fn unpin(State(api): State<Api>, peer: Peer, Sent(request): Sent<UnpinRequest>) -> Answer {
    api.steer(peer, Some(&request.path.clone()), move |control| control.unpin(&request.path)).await
}

/// Begin to read files into RAM.
#[utoipa::path(
    post, path = "/v1/prefetch", tag = "act", request_body = PrefetchRequest,
    responses((status = 202, description = "It has begun", body = Job)),
)]
pub async fn prefetch(State(api): State<Api>, peer: Peer, Sent(request): Sent<PrefetchRequest>) -> Answer {
    api.run(peer, Effort::Work, StatusCode::ACCEPTED, move |control| {
        for path in &request.paths {
            control.rights().may_steer(&peer, Some(control.mount_of(path)?))?;
        }
        control.prefetch(&peer, &request)
    })
    .await
}

/// End a prefetch.
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", tag = "act",
    params(("id" = String, Path, description = "As the prefetch was answered")),
    responses((status = 200, body = Job)),
)]
pub async fn cancel(State(api): State<Api>, peer: Peer, Path(id): Path<String>) -> Answer {
    api.run(peer, Effort::Glance, StatusCode::OK, move |control| control.cancel(&peer, &id)).await
}

/// Free what files take of the RAM.
#[utoipa::path(
    post, path = "/v1/evict", tag = "act", request_body = EvictRequest, responses((status = 200, body = Outcome)),
)]
pub async fn evict(State(api): State<Api>, peer: Peer, Sent(request): Sent<EvictRequest>) -> Answer {
    api.steer(peer, Some(&request.path.clone()), move |control| control.evict(&request)).await
}

/// Free everything that is neither pinned nor in use.
#[utoipa::path(
    post, path = "/v1/flush", tag = "act", request_body = FlushRequest, responses((status = 200, body = Outcome)),
)]
pub async fn flush(State(api): State<Api>, peer: Peer, Sent(FlushRequest {}): Sent<FlushRequest>) -> Answer {
    api.steer(peer, None, |control| Ok(control.flush())).await
}

/// Change how much the arena may hold.
#[utoipa::path(
    post, path = "/v1/budget", tag = "act", request_body = BudgetRequest, responses((status = 200, body = RamStatus)),
)]
pub async fn budget(State(api): State<Api>, peer: Peer, Sent(request): Sent<BudgetRequest>) -> Answer {
    api.steer(peer, None, move |control| {
        control.budget(&request)?;
        Ok(control.status().ram)
    })
    .await
}

/// Begin to record what is opened, read and decided.
#[utoipa::path(
    post, path = "/v1/trace/start", tag = "act", request_body = TraceStart, responses((status = 200, body = TraceStatus)),
)]
pub async fn start_trace(State(api): State<Api>, peer: Peer, Sent(request): Sent<TraceStart>) -> Answer {
    api.run(peer, Effort::Work, StatusCode::OK, move |control| {
        control.rights().may_command(&peer)?;
        control.start_trace(&request.file)
    })
    .await
}

/// End the recording.
#[utoipa::path(post, path = "/v1/trace/stop", tag = "act", responses((status = 200, body = TraceSummary)))]
pub async fn stop_trace(State(api): State<Api>, peer: Peer) -> Answer {
    api.run(peer, Effort::Work, StatusCode::OK, move |control| {
        control.rights().may_command(&peer)?;
        control.stop_trace()
    })
    .await
}

/// End one mount. The answer comes when it is gone.
#[utoipa::path(
    post, path = "/v1/unmount", tag = "act", request_body = UnmountRequest,
    responses((status = 204, description = "It is gone")),
)]
pub async fn unmount(State(api): State<Api>, peer: Peer, Sent(request): Sent<UnmountRequest>) -> Answer {
    let path = request.mountpoint.clone();
    api.steer(peer, Some(&path), move |control| control.unmount(&request.mountpoint)).await.map(done)
}

/// Go on with another program.
#[utoipa::path(
    post, path = "/v1/upgrade", tag = "act", request_body = UpgradeRequest,
    responses((status = 204, description = "The other program serves now, or is about to")),
)]
pub async fn upgrade(State(api): State<Api>, peer: Peer, Sent(request): Sent<UpgradeRequest>) -> Answer {
    let upgraded = api.run(peer, Effort::Work, StatusCode::OK, move |control| {
        control.rights().may_command(&peer)?;
        control.upgrade(&request.program)
    });
    upgraded.await.map(done)
}

/// Nothing is left to say.
pub(super) fn done(_: axum::response::Response) -> axum::response::Response {
    let mut response = axum::response::Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
