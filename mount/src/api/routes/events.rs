//! Events as they happen, for as long as somebody listens.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use weightfs::control::{ControlError, Event, EventKind, EventsQuery, Lost};

use crate::api::answer::{Asked, Refused};
use crate::api::Api;
use crate::control::rights::Peer;

/// How often a line comes while nothing happens.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What happens, as server-sent events named by their kind. A reader that is too slow loses some, and gets an event
/// named `lost`.
#[utoipa::path(
    get, path = "/v1/events", tag = "look", params(EventsQuery),
    responses((status = 200, description = "Events until the daemon ends", body = String,
               content_type = "text/event-stream")),
)]
pub async fn events(
    State(api): State<Api>,
    peer: Peer,
    Asked(query): Asked<EventsQuery>,
) -> Result<Response, Refused> {
    api.control().rights().may_look(&peer)?;
    let kinds = query.kinds.as_deref().map(kinds).transpose()?;
    let wanted = move |event: &Event| kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind));
    let told = BroadcastStream::new(api.control().hub().listen()).filter_map(move |told| match told {
        Ok(event) if wanted(&event) => sse::Event::default().event(event.kind.name()).json_data(&event).ok(),
        Ok(_) => None,
        Err(BroadcastStreamRecvError::Lagged(lost)) => {
            sse::Event::default().event("lost").json_data(Lost { lost }).ok()
        }
    });
    let stream = told.map(Ok::<_, Infallible>);
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive")).into_response())
}

fn kinds(text: &str) -> Result<Vec<EventKind>, ControlError> {
    let kind = |name: &str| {
        let found = EventKind::ALL.into_iter().find(|kind| kind.name() == name.trim());
        found.ok_or_else(|| {
            let names: Vec<_> = EventKind::ALL.iter().map(|kind| kind.name()).collect();
            ControlError::BadRequest(format!("there are no events of kind '{name}', but of {}", names.join(", ")))
        })
    };
    text.split(',').map(kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_in_a_list() {
        assert_eq!(kinds("evicted, budget").unwrap(), [EventKind::Evicted, EventKind::Budget]);
        assert!(kinds("evicted,x").unwrap_err().to_string().contains("'x', but of opened, filled"));
        assert!(kinds("").is_err());
    }
}
