//! What a machine and its mounts have and lack: the JSON that `weightfs doctor --json` prints.
//!
//! Names and meanings are a contract with scripts: checks and fields may be added, these stay.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Findings {
    pub checks: Vec<Check>,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Check {
    /// What was tried, by a name that stays: `passthrough`, `io_uring`, `speed`.
    pub name: String,
    /// The folder or device that it was tried on. None for the machine as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    pub state: CheckState,
    /// What came of it, for a person.
    pub found: String,
    /// What is slower or missing because of that, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<String>,
    /// What to do about it: a command where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    Ok,
    /// It works without, for a price.
    Warn,
    /// weightfs, or this folder of it, does not work.
    Bad,
    /// It could not be tried, and `found` says why; also what a newer daemon may say.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_has_the_form_that_scripts_read() {
        let check = Check {
            name: "io_uring".into(),
            subject: None,
            state: CheckState::Warn,
            found: "not permitted".into(),
            costs: Some("some speed when cold".into()),
            mend: None,
        };
        let expected = serde_json::json!({
            "name": "io_uring", "state": "warn", "found": "not permitted", "costs": "some speed when cold",
        });
        assert_eq!(serde_json::to_value(&check).unwrap(), expected);
        assert_eq!(serde_json::from_value::<Check>(expected).unwrap(), check);
        assert_eq!(serde_json::from_str::<CheckState>(r#""on_fire""#).unwrap(), CheckState::Unknown);
    }
}
