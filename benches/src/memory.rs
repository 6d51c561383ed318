//! The machine's free memory, brought into one state before each cold sample.
//!
//! A virtual machine may give free memory back to its host (the balloon's free page reporting), a few seconds after it
//! became free, in blocks of 2 MiB. To touch it again then costs ten times what it does otherwise, and would be charged
//! to whichever side allocates such blocks: the arena more than the page cache, and later samples more than early ones.

use memmap2::{Advice, MmapMut};

use crate::error::{Doing, Result};

const PAGE: usize = 4096;

/// Has `bytes` of free memory backed by the host, by touching them once and letting them go again.
pub fn back(bytes: u64) -> Result<()> {
    let what = || format!("take {bytes} bytes of memory");
    let mut memory = MmapMut::map_anon(bytes as usize).doing(what)?;
    // Without 2 MiB pages it takes longer and does the same.
    let _ = memory.advise(Advice::HugePage);
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    Ok(())
}
