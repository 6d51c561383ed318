//! Colours, where somebody looks who wants them.

use std::env;
use std::io::{self, IsTerminal};

use crate::env_vars::NO_COLOR;

/// Wraps text in colours, or leaves it alone.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    pub colour: bool,
}

impl Paint {
    pub const PLAIN: Self = Self { colour: false };

    /// On a terminal, unless NO_COLOR forbids it.
    pub fn of_stdout() -> Self {
        let allowed = env::var_os(NO_COLOR).is_none_or(|value| value.is_empty());
        Self { colour: allowed && io::stdout().is_terminal() }
    }

    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub fn warn(self, text: &str) -> String {
        self.wrap("33", text)
    }

    pub fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
