//! JSON for programs.

use serde::Serialize;

use crate::exit::{Exit, Failure};

/// Indented, and ended by a newline.
pub fn pretty(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|text| format!("{text}\n"))
        .map_err(|error| Failure::new(Exit::Failed, &error))
}
