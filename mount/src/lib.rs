//! Serves a weightfs store through FUSE.

mod answer;
pub mod api;
pub mod attr;
mod bounce;
pub mod control;
pub mod control_client;
pub mod daemon;
mod detached;
pub mod device;
pub mod doctor;
mod error;
mod follow;
mod fs;
mod fuse;
mod handles;
mod invalidate;
mod mounted;
mod nodes;
mod open_mode;
mod residents;
pub mod runtime_dir;
pub mod settings;
pub mod source;
mod translate;
mod tuning;
mod watch;
