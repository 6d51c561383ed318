//! Serves a weightfs store through FUSE.
