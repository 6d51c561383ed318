//! Every environment variable that the program reads.

/// The variables that set options of `weightfs mount`, and the option that each sets.
pub const MOUNT_OPTIONS: [(&str, &str); 19] = [
    ("WEIGHTFS_CONFIG", "config"),
    ("WEIGHTFS_ALSO", "also"),
    ("WEIGHTFS_RAM", "ram"),
    ("WEIGHTFS_HIGH_WATERMARK", "high-watermark"),
    ("WEIGHTFS_LOW_WATERMARK", "low-watermark"),
    ("WEIGHTFS_RESERVE", "reserve"),
    ("WEIGHTFS_READ_ONLY", "read-only"),
    ("WEIGHTFS_ALLOW_OTHER", "allow-other"),
    ("WEIGHTFS_FOLLOW_SYMLINKS", "follow-symlinks"),
    ("WEIGHTFS_IO", "io"),
    ("WEIGHTFS_NO_PASSTHROUGH", "no-passthrough"),
    ("WEIGHTFS_OPEN_WAIT", "open-wait"),
    ("WEIGHTFS_LISTEN", "listen"),
    ("WEIGHTFS_CONTROL_GROUP", "control-group"),
    ("WEIGHTFS_REPLACE", "replace"),
    ("WEIGHTFS_LOG", "log"),
    ("WEIGHTFS_LOG_FORMAT", "log-format"),
    ("WEIGHTFS_LOG_FILE", "log-file"),
    ("WEIGHTFS_FOREGROUND", "foreground"),
];

/// Separates the folders in `WEIGHTFS_ALSO`: a colon already separates the two halves of one.
pub const ALSO_SEPARATOR: u8 = b';';

/// Where the sockets and logs of a user's daemons are (XDG Base Directory Specification).
pub const XDG_RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";
/// Where a user's daemons keep what outlives them (same specification), and what stands in for it.
pub const XDG_STATE_HOME: &str = "XDG_STATE_HOME";
pub const HOME: &str = "HOME";
/// Where to look for fusermount3.
pub const PATH: &str = "PATH";
/// Set and not empty: no colours (<https://no-color.org>).
pub const NO_COLOR: &str = "NO_COLOR";
