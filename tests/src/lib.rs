//! Shared by the tests: a mount that cleans up after itself, test data that knows what it should be, a plain folder
//! to compare with, and processes that act on files as somebody else.
//!
//! Everything here treats `weightfs` as a black box: it runs the built program and looks at files and at `status`.
//! Set `WEIGHTFS_BIN` to test another binary than the one that cargo built beside the tests.

pub mod actor;
pub mod api;
pub mod cgroup;
pub mod compare;
pub mod data;
pub mod faulty;
pub mod load;
pub mod locks;
pub mod longterm;
pub mod maps;
pub mod mask;
pub mod mount;
pub mod pages;
pub mod python;
pub mod requirements;
pub mod screen;
pub mod service;
pub mod status;
pub mod system;

pub use actor::Actor;
pub use compare::Pair;
pub use faulty::Faulty;
pub use mount::Mount;
pub use status::Status;
