//! The control interface as HTTP, on the daemon's socket and, where that was asked for, to browsers.
//!
//! One thread with a runtime of its own has all connections ([`server`]). What a client can waste is bounded: the
//! connections that a user may have ([`admission`]), the length of a request and the time until it is there
//! ([`answer`]), the time until its answer is taken ([`patient`]), the threads on which answers are worked out
//! ([`pool`]). Resources are in [`routes`], each with its description, of which the OpenAPI document is made
//! ([`openapi`]). What they do is the business of `control`.

mod admission;
mod answer;
mod metrics;
mod openapi;
mod patient;
mod pool;
mod routes;
mod server;
mod web;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use weightfs::control::ControlError;

use crate::control::Control;
use crate::control::rights::Peer;
use admission::Admission;
use answer::Refused;
use pool::{Effort, Pool};
use web::Web;

pub use metrics::{METRICS, Metric, MetricKind};
pub use openapi::document as openapi;
pub use server::{ControlServer, StartError};

/// What all requests share.
#[derive(Clone)]
struct Api(Arc<Inner>);

struct Inner {
    control: Arc<Control>,
    pool: Pool,
    admission: Arc<Admission>,
    counters: Counters,
    web: Web,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    /// Answered with a problem.
    refused: AtomicU64,
}

type Answer = Result<Response, Refused>;

impl Api {
    fn control(&self) -> &Control {
        &self.0.control
    }

    /// For whoever can ask.
    async fn look<T: Serialize + 'static>(
        &self,
        peer: Peer,
        effort: Effort,
        work: impl FnOnce(&Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Answer {
        self.run(peer, effort, StatusCode::OK, move |control| {
            control.rights().may_look(&peer)?;
            work(control)
        })
        .await
    }

    /// For those who may change what is in a mount, or in all of them.
    async fn steer<T: Serialize + 'static>(
        &self,
        peer: Peer,
        path: Option<&Path>,
        work: impl FnOnce(&Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Answer {
        let path = path.map(Path::to_owned);
        self.run(peer, Effort::Work, StatusCode::OK, move |control| {
            let mount = path.map(|path| control.mount_of(&path)).transpose()?;
            control.rights().may_steer(&peer, mount)?;
            work(control)
        })
        .await
    }

    /// Works an answer out, JSON included, where that may block.
    async fn run<T: Serialize + 'static>(
        &self,
        peer: Peer,
        effort: Effort,
        status: StatusCode,
        work: impl FnOnce(&Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Answer {
        let control = Arc::clone(&self.0.control);
        let done = self.0.pool.run(effort, self.is_master(&peer), move || {
            let value = work(&control)?;
            Ok(answer::json(status, &value))
        });
        done.await.map_err(Refused)
    }

    fn is_master(&self, peer: &Peer) -> bool {
        match *peer {
            Peer::Local { uid, .. } => self.control().rights().is_master(uid),
            Peer::Web { token } => token,
        }
    }
}
