//! Model files and their tensors, and what of them is in RAM.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::lossy;
use crate::format::Component;
use crate::residency::Priority;

/// Which files, and how many of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FilesQuery {
    /// A folder or a file; without it, everything in every mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Only files of which something is in RAM or on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<FileSort>,
    /// The most files of this answer: 1000 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 10000)]
    pub limit: Option<u32>,
    /// `next` of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The names from a to z, everything else from the most or latest down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileSort {
    #[default]
    Path,
    Size,
    Resident,
    Used,
}

/// The regular files of 1 MiB and more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Files {
    pub files: Vec<FileStatus>,
    /// More follow: ask for them with this as `cursor`.
    pub next: Option<String>,
    /// Of all files that the query names, not only those listed here.
    pub totals: Totals,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Totals {
    pub files: u64,
    pub size_bytes: u64,
    pub resident_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileStatus {
    #[serde(serialize_with = "lossy")]
    #[schema(value_type = String)]
    pub path: PathBuf,
    pub size_bytes: u64,
    pub resident_bytes: u64,
    pub pinned_bytes: u64,
    /// What the policy would keep of it, resident or not.
    pub kept_bytes: u64,
    /// Of former contents of the file, which programs still have open or mapped.
    pub client_held_bytes: u64,
    pub state: FileState,
    /// Being read into RAM now.
    pub filling_bytes: u64,
    pub format: FormatName,
    pub priority: Priority,
    /// A program has it open or mapped, or has said that it uses it.
    pub in_use: bool,
    /// GPUs that hold all of it, as programs have said.
    pub in_vram: Vec<String>,
    /// For how long something of it has been resident.
    pub resident_seconds: Option<f64>,
    /// How long ago it was used last.
    pub unused_seconds: Option<f64>,
    pub last_load: Option<LoadKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    Absent,
    Partial,
    Resident,
}

/// What a file is, by its content where that was looked at, else by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FormatName {
    Safetensors,
    Gguf,
    Torch,
    Other,
}

/// How a file was read last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadKind {
    /// Mapped, its tensors in whatever order.
    Map,
    /// Tensor by tensor.
    Pread,
    /// From the front to the end.
    Whole,
}

/// Which file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FileQuery {
    #[param(value_type = String)]
    pub path: PathBuf,
}

/// What a file consists of. Resident are the extents of 2 MiB that hold a tensor, so that neighbours come together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tensors {
    #[serde(serialize_with = "lossy")]
    #[schema(value_type = String)]
    pub path: PathBuf,
    pub size_bytes: u64,
    pub header_bytes: u64,
    pub format: FormatName,
    /// By the parts of their names, in file order.
    pub groups: Vec<GroupStatus>,
    pub components: Vec<ComponentStatus>,
    /// In file order.
    pub tensors: Vec<TensorStatus>,
    /// Tensors that are left out because there are too many.
    pub omitted: u64,
}

/// Tensors whose names begin alike, such as `model.diffusion_model.input_blocks.1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupStatus {
    pub name: String,
    pub tensors: u64,
    pub size_bytes: u64,
    pub resident_bytes: u64,
    pub pinned_bytes: u64,
}

/// A part of a checkpoint that is used, and so kept, on its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ComponentStatus {
    pub name: Component,
    pub tensors: u64,
    pub size_bytes: u64,
    pub resident_bytes: u64,
    /// What names begin with in it, with a star behind: a pattern for `pin` and `prefetch`. Null where there is no such
    /// one for exactly its tensors.
    pub pattern: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TensorStatus {
    pub name: String,
    /// As the format spells it.
    pub dtype: String,
    pub shape: Vec<u64>,
    /// In the file.
    pub offset: u64,
    pub size_bytes: u64,
    pub resident_bytes: u64,
    /// All of it.
    pub pinned: bool,
}
