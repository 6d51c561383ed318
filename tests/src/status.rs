//! The answer of `weightfs status --json`, by the names of its contract.

use serde_json::Value;

/// One answer. Counts grow from the start of the daemon; sizes are bytes.
#[derive(Clone, Debug)]
pub struct Status(pub Value);

impl Status {
    /// The number at a JSON pointer such as `/io/source_read_bytes`.
    ///
    /// # Panics
    /// If it is not there: the names are a contract.
    pub fn number(&self, pointer: &str) -> u64 {
        self.0
            .pointer(pointer)
            .and_then(Value::as_u64)
            .unwrap_or_else(|| panic!("status has no number at {pointer}: {:#}", self.0))
    }

    /// Bytes read from the source since the start.
    pub fn source_read(&self) -> u64 {
        self.number("/io/source_read_bytes")
    }

    /// Bytes of model files in the arena.
    pub fn resident(&self) -> u64 {
        self.number("/ram/resident_bytes")
    }

    /// Bytes that clients still hold of generations that are gone.
    pub fn client_held(&self) -> u64 {
        self.number("/ram/client_held_bytes")
    }

    /// Whether the first mount serves resident files by passthrough. The field may be a word or a truth value.
    pub fn passthrough(&self) -> bool {
        match self.0.pointer("/mounts/0/passthrough") {
            Some(Value::Bool(on)) => *on,
            Some(Value::String(word)) => matches!(word.as_str(), "on" | "yes" | "available" | "active" | "enabled"),
            _ => panic!("status has no mounts[0].passthrough: {:#}", self.0),
        }
    }

    /// That every field of the contract is there, with its type.
    pub fn check_contract(&self) {
        const NUMBERS: [&str; 15] = [
            "/ram/budget_bytes",
            "/ram/high_watermark_bytes",
            "/ram/low_watermark_bytes",
            "/ram/resident_bytes",
            "/ram/pinned_bytes",
            "/ram/client_held_bytes",
            "/io/source_read_bytes",
            "/io/served_from_ram_bytes",
            "/io/served_from_source_bytes",
            "/io/passthrough_opens",
            "/io/stream_opens",
            "/io/evicted_bytes",
            "/worker/pid",
            "/worker/restarts",
            "/mounts/0/passthrough",
        ];
        for pointer in &NUMBERS[..14] {
            self.number(pointer);
        }
        self.passthrough();
        for pointer in ["/mounts/0/mountpoint", "/mounts/0/source", "/io/engine", "/version"] {
            assert!(self.0.pointer(pointer).is_some_and(Value::is_string), "status has no {pointer}: {:#}", self.0);
        }
        let [budget, high, low] =
            ["budget", "high_watermark", "low_watermark"].map(|n| self.number(&format!("/ram/{n}_bytes")));
        assert!(low <= high && high <= budget && low > 0, "watermarks out of order: {:#}", self.0);
    }
}
