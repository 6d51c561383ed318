//! What was found out about GPUs, as `doctor` and `status` show it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::mode::Mode;

/// The driver, its devices and cuFile; where one is missing, why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuReport {
    pub driver: DriverReport,
    pub cufile: CuFileReport,
}

/// The CUDA driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriverReport {
    /// Such as 12.8. None where there is none that answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
    pub devices: Vec<GpuDevice>,
    /// Why there is no device, and what to do, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuDevice {
    pub name: String,
    /// Its address on the bus, as `lspci -D` has it.
    pub bus_id: String,
    pub memory_bytes: u64,
    /// Whether it copies from pages of the arena with nothing in between: registering read-only mappings was tried.
    pub direct_uploads: bool,
    /// How much of them was registered at once in that trial, which ends at 1 GiB.
    #[serde(default)]
    pub registered_bytes: u64,
    /// Why not, or not more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// cuFile, which reads from storage to the memory of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CuFileReport {
    /// None where it cannot be used at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Of the library, such as 1.13.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Of the module nvidia-fs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module_version: Option<String>,
    /// Why it cannot be used, or only in compatibility mode, and what to do, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
