//! How cuFile moves bytes on this machine, from what its driver says of itself.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sys::cufile::Properties;

/// `status_flags`: the bit of NVMe by PCI peer-to-peer (CU_FILE_NVME_P2P_SUPPORTED). The other bits are filesystems and
/// devices that the module nvidia-fs serves.
const STATUS_P2P: u32 = 1 << 11;

/// The way of a byte from storage to the memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Straight, by the module nvidia-fs.
    Gds,
    /// Straight, by the kernel's peer-to-peer DMA.
    P2pdma,
    /// Through RAM: it works everywhere and saves nothing.
    Compatibility,
}

impl Mode {
    pub fn of(properties: &Properties) -> Self {
        if properties.status_flags & STATUS_P2P != 0 {
            Self::P2pdma
        } else if properties.module_version.0 > 0 && properties.status_flags != 0 {
            Self::Gds
        } else {
            Self::Compatibility
        }
    }

    /// Whether RAM is left out.
    pub fn is_direct(self) -> bool {
        self != Self::Compatibility
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gds => "GPUDirect Storage",
            Self::P2pdma => "GPUDirect Storage by P2PDMA",
            Self::Compatibility => "compatibility mode, through RAM",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_what_the_driver_can_do_not_what_is_installed() {
        let with = |module_version, status_flags| Properties { module_version, status_flags, ..Properties::default() };
        assert_eq!(Mode::of(&with((2, 22), 1 << 4)), Mode::Gds);
        assert_eq!(Mode::of(&with((2, 22), 0)), Mode::Compatibility, "a module that serves nothing");
        assert_eq!(Mode::of(&with((0, 0), STATUS_P2P)), Mode::P2pdma);
        assert_eq!(Mode::of(&with((0, 0), 0)), Mode::Compatibility);
        assert!(!Mode::Compatibility.is_direct() && Mode::P2pdma.is_direct());
    }
}
