//! Serves a weightfs store through FUSE.

mod answer;
pub mod attr;
mod bounce;
pub mod control_client;
mod control_line;
pub mod control_server;
pub mod daemon;
mod detached;
pub mod device;
mod error;
mod follow;
mod fs;
mod fuse;
mod handles;
mod invalidate;
mod nodes;
mod open_mode;
mod pins;
mod places;
mod residents;
pub mod runtime_dir;
pub mod settings;
mod source;
mod steer;
mod translate;
mod tuning;
mod watch;
