//! What is, and why. For whoever may use the mounts.

use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use weightfs::control::{
    ControlError, Explained, FileQuery, Files, FilesQuery, Findings, History, Job, JobQuery, LONGEST_WAIT_MS, Mounts,
    Status, Tensors, TraceStatus,
};

use crate::api::answer::{self, Asked};
use crate::api::pool::Effort;
use crate::api::{Answer, Api, metrics, openapi};
use crate::control::rights::Peer;

/// How often it is looked whether something has changed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How the daemon is.
#[utoipa::path(get, path = "/v1/status", tag = "look", responses((status = 200, body = Status)))]
pub async fn status(State(api): State<Api>, peer: Peer) -> Answer {
    api.look(peer, Effort::Glance, |control| Ok(control.status())).await
}

/// What it serves, and where.
#[utoipa::path(get, path = "/v1/mounts", tag = "look", responses((status = 200, body = Mounts)))]
pub async fn mounts(State(api): State<Api>, peer: Peer) -> Answer {
    api.look(peer, Effort::Glance, |control| Ok(control.mounts())).await
}

/// Model files, and what of each is in RAM. Files that were never opened are among them.
#[utoipa::path(get, path = "/v1/files", tag = "look", params(FilesQuery), responses((status = 200, body = Files)))]
pub async fn files(State(api): State<Api>, peer: Peer, Asked(query): Asked<FilesQuery>) -> Answer {
    api.look(peer, Effort::Work, move |control| control.files(&peer, &query)).await
}

/// The tensors of a file, and what of them is in RAM.
#[utoipa::path(get, path = "/v1/tensors", tag = "look", params(FileQuery), responses((status = 200, body = Tensors)))]
pub async fn tensors(State(api): State<Api>, peer: Peer, Asked(query): Asked<FileQuery>) -> Answer {
    api.look(peer, Effort::Work, move |control| control.tensors(&peer, &query.path)).await
}

/// Why a file is or is not in RAM, and what would go next.
#[utoipa::path(get, path = "/v1/explain", tag = "look", params(FileQuery), responses((status = 200, body = Explained)))]
pub async fn explain(State(api): State<Api>, peer: Peer, Asked(query): Asked<FileQuery>) -> Answer {
    api.look(peer, Effort::Work, move |control| control.explain(&peer, &query.path)).await
}

/// The last ten minutes.
#[utoipa::path(get, path = "/v1/history", tag = "look", responses((status = 200, body = History)))]
pub async fn history(State(api): State<Api>, peer: Peer) -> Answer {
    api.look(peer, Effort::Glance, |control| Ok(control.history())).await
}

/// What of this machine helps or hinders, as the daemon sees it.
#[utoipa::path(get, path = "/v1/doctor", tag = "look", responses((status = 200, body = Findings)))]
pub async fn doctor(State(api): State<Api>, peer: Peer) -> Answer {
    api.look(peer, Effort::Work, |control| Ok(control.doctor())).await
}

/// Whether something is recorded.
#[utoipa::path(get, path = "/v1/trace", tag = "look", responses((status = 200, body = TraceStatus)))]
pub async fn trace(State(api): State<Api>, peer: Peer) -> Answer {
    api.look(peer, Effort::Glance, |control| Ok(control.trace())).await
}

/// How far a prefetch is.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "look",
    params(("id" = String, Path, description = "As the prefetch was answered"), JobQuery),
    responses((status = 200, body = Job)),
)]
pub async fn job(State(api): State<Api>, peer: Peer, Path(id): Path<String>, Asked(query): Asked<JobQuery>) -> Answer {
    let wait = query.wait_ms.unwrap_or(0);
    if wait > LONGEST_WAIT_MS {
        return Err(ControlError::BadRequest(format!("wait_ms is at most {LONGEST_WAIT_MS}")).into());
    }
    let until = Instant::now() + Duration::from_millis(wait);
    api.control().rights().may_look(&peer)?;
    // Looks at counters alone.
    let first = api.control().job(&id)?;
    let mut now = first.clone();
    while !now.state.has_ended()
        && (now.state, now.bytes_done) == (first.state, first.bytes_done)
        && Instant::now() < until
    {
        tokio::time::sleep(LOOK_AGAIN.min(until.duration_since(Instant::now()))).await;
        now = api.control().job(&id)?;
    }
    Ok(answer::json(StatusCode::OK, &now))
}

/// For Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "look",
    responses((status = 200, description = "Metrics in the text format", body = String, content_type = "text/plain")),
)]
pub async fn metrics(State(api): State<Api>, peer: Peer) -> Answer {
    let sample = api.clone();
    let text = api.0.pool.run(Effort::Glance, api.is_master(&peer), move || {
        sample.control().rights().may_look(&peer)?;
        Ok(metrics::text(&sample))
    });
    Ok(answer::plain(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.await?))
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "look", responses((status = 200, description = "OpenAPI 3.1")))]
pub async fn description() -> Answer {
    Ok(answer::plain(StatusCode::OK, "application/json", openapi::document()))
}
