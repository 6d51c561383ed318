//! A trace in memory.

use std::collections::HashMap;

use super::event::{Event, What};
use super::format::{Reader, TraceError};
use crate::residency::UseKind;

/// What happened, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub events: Vec<Event>,
}

impl Trace {
    /// Reads as much of a trace as is good, and says why it ends early if it does.
    pub fn read(bytes: &[u8]) -> Result<(Trace, Option<TraceError>), TraceError> {
        let mut events = Vec::new();
        for event in Reader::new(bytes)? {
            match event {
                Ok(event) => events.push(event),
                Err(error) => return Ok((Trace { events }, Some(error))),
            }
        }
        Ok((Trace { events }, None))
    }

    /// For each event, what its open turned out to be, if it is part of one. An open that was never closed is what it
    /// was opened as.
    pub(super) fn kinds(&self) -> Vec<Option<UseKind>> {
        let mut kinds = vec![None; self.events.len()];
        let mut closes: HashMap<u32, UseKind> = HashMap::new();
        let mut unclosed: HashMap<u32, UseKind> = HashMap::new();
        for event in &self.events {
            if let What::Open { open, kind, .. } = event.what {
                unclosed.insert(open, kind);
            } else if let What::Close { open, .. } = event.what {
                unclosed.remove(&open);
            }
        }
        for (place, event) in self.events.iter().enumerate().rev() {
            kinds[place] = match event.what {
                What::Close { open, kind } => {
                    closes.insert(open, kind);
                    Some(kind)
                }
                What::Read { open, .. } => closes.get(&open).or(unclosed.get(&open)).copied(),
                What::Open { open, kind, .. } => Some(closes.remove(&open).unwrap_or(kind)),
                _ => None,
            };
        }
        kinds
    }
}
