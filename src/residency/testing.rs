//! Accesses for the tests of policies.

use super::blocks::Layout;
use super::policy::Access;
use crate::ids::{ExtentIndex, FileId};

/// A reading of the whole of a file of `extents` extents.
pub fn access(file: u64, extents: ExtentIndex, traffic: u64) -> Access {
    let layout = Layout::new(extents);
    Access { file: FileId(file), layout, blocks: layout.touching(&(0..extents)), pass: traffic, traffic, class: 4 }
}

/// The same, with another class.
pub fn rate(access: Access, class: u8) -> Access {
    Access { class, ..access }
}
