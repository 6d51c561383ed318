//! Parsers of bytes that strangers made, and what must hold for any of them.
//!
//! A target is a plain function that panics where something is wrong. It is run by `tests/replay.rs` over the corpus of
//! its name in `corpora` and over mutations of that, with the stable toolchain, and by a fuzzing engine from `engine`:
//!
//! ```text
//! cd fuzz && cargo +nightly fuzz run --fuzz-dir engine gguf corpora/gguf -- -max_len=65536 -max_total_time=600
//! ```
//!
//! A new target is a line in [`TARGETS`], a folder in `corpora`, and a file of three lines with an entry in `engine`.
//! The parser of the configuration belongs to the program `weightfs`, whose own tests run it over the corpus `config`.

mod control;
mod formats;
mod mutate;
pub mod replay;
mod stored;

/// One parser.
pub struct Target {
    pub name: &'static str,
    /// Panics where what must hold does not.
    pub run: fn(&[u8]),
}

pub const TARGETS: [Target; 9] = [
    Target { name: "safetensors", run: formats::safetensors },
    Target { name: "gguf", run: formats::gguf },
    Target { name: "torch_zip", run: formats::torch_zip },
    Target { name: "shard_index", run: formats::shard_index },
    Target { name: "trace", run: stored::trace },
    Target { name: "history", run: stored::history },
    Target { name: "journal", run: stored::journal },
    Target { name: "control", run: control::control },
    Target { name: "pattern", run: control::pattern },
];

/// Runs the target `name`.
///
/// # Panics
/// Where there is none of that name, and where it finds something.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of that name");
    (target.run)(bytes);
}
