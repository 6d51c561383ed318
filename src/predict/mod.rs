//! How files are used, and what to expect of the next open. Pure: time is an argument.
//!
//! [`OpenWatch`] follows the reads of one open and boils them down to [`Facts`]; these give the open's [`OpenKind`] and
//! the [`Order`] in which the tensors were read; [`History`] keeps both for each file and answers what an open will
//! come to. A wrong guess costs time or room, never bytes.

mod history;
mod kind;
mod order;
mod recent;
mod watch;

pub use history::{Expectation, FileKey, History, LiveOpen, MAX_FILES};
pub use kind::{Facts, OpenKind, PEEK_LIMIT};
pub use order::{Order, OrderRecorder};
pub use watch::{Access, OpenWatch};
