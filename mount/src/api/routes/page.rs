//! The page for browsers, which is part of the program and asks nobody else.

use std::net::SocketAddr;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::response::Response;
use weightfs::control::{ControlError, Dashboard, DashboardRequest};

use crate::api::answer::{self, Sent};
use crate::api::pool::Effort;
use crate::api::{Answer, Api};
use crate::control::rights::Peer;

/// Serve the page to a browser, and say where it is.
#[utoipa::path(
    post, path = "/v1/dashboard", tag = "act", request_body = DashboardRequest,
    responses((status = 200, body = Dashboard)),
)]
pub async fn dashboard(State(api): State<Api>, peer: Peer, Sent(request): Sent<DashboardRequest>) -> Answer {
    let served = api.clone();
    api.run(peer, Effort::Work, StatusCode::OK, move |control| {
        control.rights().may_steer(&peer, None)?;
        let listen = request.listen.as_deref().map(address).transpose()?;
        if listen.is_some() {
            control.rights().may_command(&peer)?;
        }
        served.0.web.dashboard(listen, control.state_dir())
    })
    .await
}

fn address(text: &str) -> Result<SocketAddr, ControlError> {
    text.parse().map_err(|_| ControlError::BadRequest(format!("'{text}' is no address and port, such as 127.0.0.1:8000")))
}

pub async fn index() -> Response {
    file("text/html; charset=utf-8", include_str!("../dashboard/index.html"))
}

pub async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../dashboard/app.js"))
}

pub async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("../dashboard/style.css"))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let mut response = answer::plain(StatusCode::OK, kind, text);
    let headers = response.headers_mut();
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
