//! GPUs: what a machine can do with them, and reads from storage straight into their memory.
//!
//! Nothing of CUDA is loaded into the daemon or into a command that a person runs. `presence` looks at files; whatever
//! calls the driver or cuFile does so in a process of its own (`probe` answers what there is, `serve` reads), which its
//! parent (`process`) can do without. `mode`, `plan` and `protocol` compute and do nothing else.

pub mod held;
pub mod mode;
pub mod plan;
pub mod presence;
pub mod probe;
pub mod process;
pub mod protocol;
mod reader;
pub mod report;
pub mod serve;

/// Environment variables: other files than the libraries that the linker finds, and where device files are looked for
/// instead of `/`, for containers that have them elsewhere.
pub const LIBCUDA_VARIABLE: &str = "WEIGHTFS_LIBCUDA";
pub const LIBCUFILE_VARIABLE: &str = "WEIGHTFS_LIBCUFILE";
pub const ROOT_VARIABLE: &str = "WEIGHTFS_GPU_ROOT";
/// cuFile's own variable for its configuration.
pub const CUFILE_CONFIG_VARIABLE: &str = "CUFILE_ENV_PATH_JSON";

const LIBCUDA: &str = "libcuda.so.1";
const LIBCUFILE: &str = "libcufile.so.0";

/// The oldest driver that is used: CUDA 11.1 can register read-only memory.
const OLDEST_CUDA: i32 = 11010;

/// Whether a driver of this version is used.
///
/// # Errors
/// Why not, and what to do.
fn new_enough(version: i32) -> Result<(), String> {
    if version >= OLDEST_CUDA {
        return Ok(());
    }
    let (has, needs) = (shown_version(version), shown_version(OLDEST_CUDA));
    Err(format!("the NVIDIA driver is for CUDA {has}; update it to one for {needs} or later"))
}

/// 12080 as 12.8, as CUDA counts its versions.
fn shown_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The number of `cuda` or `cuda:N`.
///
/// # Errors
/// What is wrong with `name`, for a person.
pub fn device_number(name: &str) -> Result<u32, String> {
    let number = match name.strip_prefix("cuda") {
        Some("") => Some(0),
        Some(rest) => rest.strip_prefix(':').and_then(|number| number.parse().ok()),
        None => None,
    };
    number.ok_or_else(|| format!("'{name}' is no device; say 'cuda' or 'cuda:N', such as cuda:0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_numbers() {
        assert_eq!(device_number("cuda"), Ok(0));
        assert_eq!(device_number("cuda:3"), Ok(3));
        for bad in ["", "cpu", "cuda:", "cuda3", "cuda:x", "cuda:-1"] {
            assert!(device_number(bad).unwrap_err().contains("cuda:0"), "{bad}");
        }
        assert_eq!(shown_version(12080), "12.8");
    }
}
