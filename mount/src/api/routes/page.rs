//! The page for browsers, which is part of the program and asks nobody else.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::response::Response;
use axum::routing::get;
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
    text.parse()
        .map_err(|_| ControlError::BadRequest(format!("'{text}' is no address and port, such as 127.0.0.1:8000")))
}

/// A file of the page: where it is served, its type, its text.
type PageFile = (&'static str, &'static str, &'static str);

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! page_file {
    ($name:literal, $kind:expr) => {
        (concat!("/", $name), $kind, include_str!(concat!("../dashboard/", $name)))
    };
}

/// All of the page. There is nothing else that it loads.
const PAGE: &[PageFile] = &[
    ("/", "text/html; charset=utf-8", include_str!("../dashboard/index.html")),
    page_file!("icon.svg", "image/svg+xml"),
    page_file!("page.css", STYLE),
    page_file!("view.css", STYLE),
    page_file!("api.js", SCRIPT),
    page_file!("chart.js", SCRIPT),
    page_file!("dom.js", SCRIPT),
    page_file!("events.js", SCRIPT),
    page_file!("fills.js", SCRIPT),
    page_file!("flow.js", SCRIPT),
    page_file!("format.js", SCRIPT),
    page_file!("library.js", SCRIPT),
    page_file!("list.js", SCRIPT),
    page_file!("live.js", SCRIPT),
    page_file!("main.js", SCRIPT),
    page_file!("map.js", SCRIPT),
    page_file!("model.js", SCRIPT),
    page_file!("models.js", SCRIPT),
    page_file!("notice.js", SCRIPT),
    page_file!("ram.js", SCRIPT),
    page_file!("residency.js", SCRIPT),
    page_file!("squarify.js", SCRIPT),
    page_file!("steer.js", SCRIPT),
    page_file!("theme.js", SCRIPT),
];

/// The files of the page, each at its place.
pub fn files() -> Router<Api> {
    PAGE.iter().fold(Router::new(), |router, (place, kind, text)| {
        router.route(place, get(move || async move { file(kind, text) }))
    })
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let mut response = answer::plain(StatusCode::OK, kind, text);
    let headers = response.headers_mut();
    // Names of files and of tensors come from whoever made them: should one ever be taken for code, it does not run.
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_page_is_served_and_there_is_no_other() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api/dashboard");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // What tells the tests outside of a browser that scripts are modules.
        let found: BTreeSet<String> = entries.filter(|name| name != "package.json").collect();
        let served = |place: &str| if place == "/" { "index.html".to_owned() } else { place[1..].to_owned() };
        assert_eq!(found, PAGE.iter().map(|(place, ..)| served(place)).collect());
    }

    #[test]
    fn what_the_page_loads_is_served_and_nothing_comes_from_elsewhere() {
        let served: BTreeSet<&str> = PAGE.iter().map(|(place, ..)| &place[1..]).collect();
        for (place, kind, text) in PAGE {
            let marks: &[&str] = if *kind == SCRIPT { &["from \"./"] } else { &["src=\"", "href=\"", "url("] };
            for mark in marks {
                for (at, _) in text.match_indices(mark) {
                    let rest = &text[at + mark.len()..];
                    let name = &rest[..rest.find(['"', ')']).unwrap()];
                    assert!(name.starts_with('#') || served.contains(name), "{place} loads {name}");
                }
            }
        }
    }
}
