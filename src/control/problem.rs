//! What was not carried out, and why: RFC 9457 problem documents.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request that was not carried out, as it travels with the type `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    #[serde(rename = "type")]
    pub kind: ProblemKind,
    /// The same for every problem of this type.
    pub title: String,
    /// Of HTTP.
    pub status: u16,
    /// For a person: what is wrong, and what to do about it.
    pub detail: String,
}

/// What programs tell problems apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum ProblemKind {
    #[serde(rename = "urn:weightfs:problem:bad_request")]
    BadRequest,
    #[serde(rename = "urn:weightfs:problem:not_permitted")]
    NotPermitted,
    /// The path lies in no mount of this daemon.
    #[serde(rename = "urn:weightfs:problem:not_mounted")]
    NotMounted,
    #[serde(rename = "urn:weightfs:problem:no_file")]
    NoFile,
    /// The job, the hint or the resource itself.
    #[serde(rename = "urn:weightfs:problem:not_found")]
    NotFound,
    #[serde(rename = "urn:weightfs:problem:method_not_allowed")]
    MethodNotAllowed,
    #[serde(rename = "urn:weightfs:problem:timed_out")]
    TimedOut,
    #[serde(rename = "urn:weightfs:problem:no_room")]
    NoRoom,
    #[serde(rename = "urn:weightfs:problem:busy")]
    Busy,
    #[serde(rename = "urn:weightfs:problem:too_large")]
    TooLarge,
    #[serde(rename = "urn:weightfs:problem:media_type")]
    MediaType,
    #[serde(rename = "urn:weightfs:problem:overloaded")]
    Overloaded,
    /// Anything else, and what a newer daemon may say.
    #[serde(rename = "urn:weightfs:problem:failed", other)]
    Failed,
}

impl ProblemKind {
    /// Of HTTP.
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::NotPermitted => 403,
            Self::NotMounted | Self::NoFile | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::TimedOut => 408,
            Self::NoRoom | Self::Busy => 409,
            Self::TooLarge => 413,
            Self::MediaType => 415,
            Self::Failed => 500,
            Self::Overloaded => 503,
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::BadRequest => "The request is not understood",
            Self::NotPermitted => "Not permitted",
            Self::NotMounted => "Not in a mount of this daemon",
            Self::NoFile => "No such model file",
            Self::NotFound => "No such thing",
            Self::MethodNotAllowed => "Not a method of this resource",
            Self::TimedOut => "The request did not come in time",
            Self::NoRoom => "No room",
            Self::Busy => "In use",
            Self::TooLarge => "Too large",
            Self::MediaType => "Not JSON",
            Self::Failed => "Failed",
            Self::Overloaded => "Too many requests at a time",
        }
    }
}

/// Why the daemon does not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("the request is not understood: {0}")]
    BadRequest(String),
    /// Says who may.
    #[error("{0}")]
    NotPermitted(String),
    #[error("{} is not mounted by this daemon; 'weightfs status' shows what is", .0.display())]
    NotMounted(PathBuf),
    #[error("{}: {reason}", .path.display())]
    NoFile { path: PathBuf, reason: String },
    /// Says what there is not.
    #[error("{0}")]
    NotFound(String),
    #[error("{0} cannot be used on this; see /v1/openapi.json for what can")]
    MethodNotAllowed(String),
    #[error("the request did not come in time")]
    TimedOut,
    /// Says what is pinned already.
    #[error("{0}")]
    NoRoom(String),
    #[error("{} is in use; close what is open there, or take it out of sight with 'weightfs unmount --lazy'", .0.display())]
    Busy(PathBuf),
    #[error("the request is larger than {0} bytes")]
    TooLarge(u64),
    #[error("send JSON, with the header 'Content-Type: application/json'")]
    MediaType,
    #[error("the daemon answers as many requests as it will at a time; try again")]
    Overloaded,
    #[error("{0}")]
    Failed(String),
}

impl ControlError {
    pub fn kind(&self) -> ProblemKind {
        match self {
            Self::BadRequest(_) => ProblemKind::BadRequest,
            Self::NotPermitted(_) => ProblemKind::NotPermitted,
            Self::NotMounted(_) => ProblemKind::NotMounted,
            Self::NoFile { .. } => ProblemKind::NoFile,
            Self::NotFound(_) => ProblemKind::NotFound,
            Self::MethodNotAllowed(_) => ProblemKind::MethodNotAllowed,
            Self::TimedOut => ProblemKind::TimedOut,
            Self::NoRoom(_) => ProblemKind::NoRoom,
            Self::Busy(_) => ProblemKind::Busy,
            Self::TooLarge(_) => ProblemKind::TooLarge,
            Self::MediaType => ProblemKind::MediaType,
            Self::Overloaded => ProblemKind::Overloaded,
            Self::Failed(_) => ProblemKind::Failed,
        }
    }
}

impl From<&ControlError> for Problem {
    fn from(error: &ControlError) -> Self {
        let kind = error.kind();
        Self { kind, title: kind.title().to_owned(), status: kind.status(), detail: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_a_newer_daemon_is_still_a_problem() {
        let text = r#"{"type":"urn:weightfs:problem:on_fire","title":"Fire","status":500,"detail":"run"}"#;
        let problem: Problem = serde_json::from_str(text).unwrap();
        assert_eq!((problem.kind, problem.to_string()), (ProblemKind::Failed, "run".to_owned()));
    }

    #[test]
    fn every_error_keeps_its_kind_and_words_on_the_wire() {
        let error = ControlError::Busy("/m".into());
        let wire = serde_json::to_value(Problem::from(&error)).unwrap();
        let expected = serde_json::json!({
            "type": "urn:weightfs:problem:busy", "title": "In use", "status": 409, "detail": error.to_string(),
        });
        assert_eq!(wire, expected);
        let failed = serde_json::to_value(Problem::from(&ControlError::Failed("no".into()))).unwrap();
        assert_eq!(failed["type"], "urn:weightfs:problem:failed");
    }
}
