//! Serves a weightfs store through FUSE.

pub mod control_client;
mod control_line;
pub mod control_server;
pub mod daemon;
pub mod runtime_dir;
pub mod settings;
