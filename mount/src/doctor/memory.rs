//! What the arena would be made of here, and whether it and ComfyUI leave each other room.

use std::fs;

use weightfs::arena::{Arena, Pages};
use weightfs::ids::GenerationId;
use weightfs::pressure::parse_meminfo;
use weightfs::units::{ByteSize, EXTENT_SIZE};

use super::finding::Finding;

/// Enough to have some pages of 2 MiB.
const TRIED: u64 = 4 * EXTENT_SIZE;

/// What ComfyUI counts as headroom: 10 % of the RAM, from 2 to 10 GB.
const HEADROOM_PART: u64 = 10;
const LEAST_HEADROOM: u64 = 2_000_000_000;
const MOST_HEADROOM: u64 = 10_000_000_000;

/// A tmpfs made and written to, or whatever stands in for it.
pub fn arena() -> Vec<Finding> {
    let arena = match Arena::create(TRIED) {
        Ok(arena) => arena,
        Err(error) => {
            return vec![Finding::bad("arena", error.to_string()).costs("nothing can be kept in RAM")];
        }
    };
    match arena.pages() {
        Pages::Detached { never_swapped, .. } => {
            vec![pages(huge_bytes(&arena)), swap(never_swapped)]
        }
        Pages::Shared => vec![shared(), locked(arena.lock_limit(), memory_total())],
    }
}

fn pages(huge: Result<u64, String>) -> Finding {
    let name = "pages";
    let costs = "mapped models take longer to touch";
    match huge {
        Ok(TRIED..) => Finding::ok(name, "2 MiB pages"),
        Ok(0) => Finding::warn(name, "4 KiB pages: the kernel gives tmpfs none of 2 MiB").costs(costs).mend(
            "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, unless it was 'deny' for a reason; \
             a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
        Ok(_) => Finding::warn(name, "only some pages of 2 MiB: free memory is in small pieces")
            .costs(costs)
            .mend("as root, before mounting: echo 1 > /proc/sys/vm/compact_memory"),
        Err(error) => Finding::unknown(name, error),
    }
}

/// How much of a new file of the arena is in pages of 2 MiB once it was written.
fn huge_bytes(arena: &Arena) -> Result<u64, String> {
    let file = arena.file(GenerationId(0), TRIED).map_err(|error| error.to_string())?;
    let mapping = file.mapping();
    mapping.target(0..mapping.len()).fill(1);
    let smaps = fs::read_to_string("/proc/self/smaps").map_err(|error| format!("the kernel does not tell: {error}"))?;
    let start = mapping.bytes(0..1).as_ptr() as usize;
    huge_bytes_at(&smaps, start).ok_or_else(|| "the kernel does not tell".to_owned())
}

/// Bytes in 2 MiB pages of the mapping that begins at `start`, by the text of `/proc/self/smaps`.
fn huge_bytes_at(smaps: &str, start: usize) -> Option<u64> {
    let first = format!("{start:x}-");
    let lines = smaps.lines().skip_while(|line| !line.starts_with(&first)).skip(1);
    let of_it = lines.take_while(|line| line.split(' ').next().is_some_and(|word| word.ends_with(':')));
    let kib = of_it
        .filter(|line| line.starts_with("ShmemPmdMapped:") || line.starts_with("FilePmdMapped:"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.reduce(|a, b| a + b).map(|kib| kib << 10)
}

fn swap(never: bool) -> Finding {
    if never {
        return Finding::ok("swap", "the arena is never swapped out, and needs no locked memory for that");
    }
    Finding::warn("swap", "the kernel may swap the arena out")
        .costs("under memory pressure, some of its purpose")
        .mend("Linux 6.4 or later; or no swap")
}

/// Without root.
fn shared() -> Finding {
    let free = rustix::fs::statfs("/dev/shm").map(|found| found.f_bavail * found.f_bsize as u64);
    match free {
        Ok(free) => Finding::warn("arena", format!("in /dev/shm, which has room for {}", ByteSize(free)))
            .costs("--ram is bounded by it, and the pages are of 4 KiB unless the system says otherwise")
            .mend("mount as root; or make it larger: mount -o remount,size=SIZE /dev/shm"),
        Err(error) => Finding::unknown("arena", format!("in /dev/shm, which does not say how large it is: {error}")),
    }
}

fn locked(limit: u64, total: Option<u64>) -> Finding {
    let name = "locked-memory";
    if total.is_some_and(|total| limit >= total / 2) {
        return Finding::ok(name, format!("up to {} of the arena are locked in RAM", shown_limit(limit)));
    }
    Finding::warn(name, format!("only {} of the arena can be locked in RAM", shown_limit(limit)))
        .costs("the rest may be swapped out")
        .mend(
            "as root: '* - memlock unlimited' in /etc/security/limits.conf and a new login; LimitMEMLOCK=infinity in a \
             service; --ulimit memlock=-1 for Docker; or mount as root",
        )
}

fn shown_limit(limit: u64) -> String {
    if limit == u64::MAX { "all".to_owned() } else { ByteSize(limit).to_string() }
}

/// Bytes of RAM of the machine.
pub fn memory_total() -> Option<u64> {
    parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?).ok().map(|found| found.total)
}

/// Whether `reserve` is more than ComfyUI leaves free, on a machine or in a container with `most` bytes of RAM.
pub fn reserve(most: u64, reserve: u64) -> Finding {
    let headroom = (most / HEADROOM_PART).clamp(LEAST_HEADROOM, MOST_HEADROOM);
    let (shown, left) = (ByteSize(headroom), ByteSize(reserve));
    if reserve >= headroom {
        return Finding::ok("reserve", format!("{left} are left to other programs, ComfyUI's headroom is {shown}"));
    }
    let finding =
        Finding::warn("reserve", format!("{left} are left to other programs, less than ComfyUI's headroom of {shown}"))
            .costs("ComfyUI drops weights that it has loaded while weightfs still grows");
    if headroom < most / 2 {
        return finding.mend(format!("mount with --reserve {}", ByteSize(headroom + EXTENT_SIZE)));
    }
    finding.mend("more RAM; or start ComfyUI with --fast-disk, and give weightfs little --ram")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightfs::control::CheckState;

    const GIB: u64 = 1 << 30;

    #[test]
    fn pages_of_one_mapping_are_told_from_those_of_others() {
        let smaps = "7f00-7f20 rw-s 0 00:1 5 /a (deleted)\nSize: 1 kB\nShmemPmdMapped:     2048 kB\nVmFlags: rd wr\n\
                     7f20-7f40 rw-s 0 00:1 6 /b\nShmemPmdMapped:     4096 kB\nFilePmdMapped:     0 kB\n";
        assert_eq!(huge_bytes_at(smaps, 0x7f00), Some(2 << 20));
        assert_eq!(huge_bytes_at(smaps, 0x7f20), Some(4 << 20));
        assert_eq!(huge_bytes_at(smaps, 0x7f2), None);
    }

    #[test]
    fn pages_are_judged_by_what_came() {
        assert_eq!(pages(Ok(TRIED)).check.state, CheckState::Ok);
        assert_eq!(pages(Ok(0)).check.state, CheckState::Warn);
        assert!(pages(Ok(EXTENT_SIZE)).check.mend.unwrap().contains("compact"));
        assert_eq!(pages(Err("no".into())).check.state, CheckState::Unknown);
    }

    #[test]
    fn the_default_reserve_satisfies_comfyui_where_there_is_ram_for_both() {
        for total in [16 * GIB, 64 * GIB, 512 * GIB] {
            let finding = reserve(total, weightfs::pressure::default_reserve(total));
            assert_eq!(finding.check.state, CheckState::Ok, "{total}");
        }
        let small = reserve(64 * GIB, GIB);
        assert_eq!(small.check.state, CheckState::Warn);
        assert!(small.check.mend.unwrap().starts_with("mount with --reserve 6.4 GiB"));
        assert!(reserve(3 * GIB, GIB).check.mend.unwrap().starts_with("more RAM"));
    }

    #[test]
    fn a_small_limit_on_locked_memory_is_said() {
        assert_eq!(locked(8 << 20, Some(64 * GIB)).check.state, CheckState::Warn);
        assert_eq!(locked(u64::MAX, Some(64 * GIB)).check.found, "up to all of the arena are locked in RAM");
    }

    #[test]
    fn the_arena_of_this_machine_can_be_made() {
        assert!(arena().iter().all(|finding| finding.check.state != CheckState::Bad));
    }
}
