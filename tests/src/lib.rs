//! Shared by the tests: a mount that cleans up after itself, and the programs under test.
