//! The description of the interface, made from the types and the routes.

use utoipa::openapi::path::Operation;
use utoipa::openapi::{Content, RefOr, Response};
use utoipa::{Modify, OpenApi};
use weightfs::control::{Event, FileSort, Lost, Problem};

use super::routes::{act, events, hints, look, page};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "weightfs",
        version = "1",
        description = "Sees and steers a running weightfs daemon. Find its socket with \
            `getfattr --only-values -n user.weightfs.control PATH` on any path of a mount, and ask with \
            `curl --unix-socket SOCKET http://weightfs/v1/status`. Sizes are in bytes, times in seconds, paths absolute. \
            Answers may get more fields, and enumerations more values; requests with unknown fields are refused. \
            Looking is for whoever may use the mounts; what changes something is for root, the daemon's user, the owner \
            of the mounted folder and the members of --control-group."
    ),
    servers((url = "http://weightfs", description = "By the daemon's Unix socket; the name does not matter")),
    tags(
        (name = "look", description = "What is, and why"),
        (name = "act", description = "What is to be in RAM, and the daemon itself"),
        (name = "hints", description = "What programs know of what comes"),
    ),
    paths(
        look::status, look::mounts, look::files, look::tensors, look::explain, look::history, look::doctor,
        look::trace, look::job, look::metrics, look::description, events::events, page::dashboard,
        act::pin, act::unpin, act::prefetch, act::cancel, act::evict, act::flush, act::budget,
        act::start_trace, act::stop_trace, act::unmount, act::upgrade,
        hints::in_use, hints::end_in_use, hints::priority, hints::queue, hints::vram,
    ),
    components(schemas(Problem, Event, FileSort, Lost)),
    modifiers(&Problems),
)]
struct Description;

/// Every operation may be refused.
struct Problems;

impl Modify for Problems {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        for item in openapi.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.post, &mut item.delete];
            operations.into_iter().flatten().for_each(|operation: &mut Operation| {
                let schema = utoipa::openapi::Ref::from_schema_name("Problem");
                let content = Content::new(Some(RefOr::Ref(schema)));
                let mut response = Response::new("It was not carried out, and why");
                response.content.insert("application/problem+json".to_owned(), RefOr::T(content));
                operation.responses.responses.insert("default".to_owned(), RefOr::T(response));
            });
        }
    }
}

/// As JSON, indented.
pub fn document() -> String {
    Description::openapi().to_pretty_json().unwrap_or_default()
}
