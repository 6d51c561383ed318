//! `/proc/meminfo`.

use super::ParseError;

/// What the kernel says of the machine's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meminfo {
    pub total: u64,
    /// What can be had without swapping: `MemAvailable`, since Linux 3.14.
    pub available: u64,
    /// tmpfs and shared memory, the arena included.
    pub shmem: u64,
}

/// Parses the contents of `/proc/meminfo`, lines such as `MemTotal:  16318480 kB` (proc_meminfo(5)).
pub fn parse_meminfo(text: &str) -> Result<Meminfo, ParseError> {
    let field = |name: &'static str| {
        let missing = ParseError { file: "/proc/meminfo", field: name };
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).ok_or(missing.clone())?;
        let number = line.trim().strip_suffix("kB").ok_or(missing.clone())?.trim_end();
        number.parse::<u64>().ok().and_then(|kib| kib.checked_mul(1024)).ok_or(missing)
    };
    Ok(Meminfo { total: field("MemTotal")?, available: field("MemAvailable")?, shmem: field("Shmem")? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REAL: &str = "MemTotal:       16318480 kB\nMemFree:         9143120 kB\nMemAvailable:   14801044 kB\n\
        SwapCached:            0 kB\nShmemHugePages:        4 kB\nShmem:             48372 kB\nHugePages_Total:       0\n";

    #[test]
    fn the_real_thing() {
        let expected = Meminfo { total: 16_318_480 << 10, available: 14_801_044 << 10, shmem: 48_372 << 10 };
        assert_eq!(parse_meminfo(REAL), Ok(expected));
    }

    #[test]
    fn what_is_missing_is_named() {
        let without = REAL.replace("MemAvailable", "MemImagined");
        assert!(parse_meminfo(&without).unwrap_err().to_string().contains("MemAvailable"));
        assert!(parse_meminfo(&REAL.replace("16318480", "99999999999999999999")).is_err());
    }

    proptest! {
        #[test]
        fn hostile_text_is_refused_or_read(text in "(MemTotal|MemAvailable|Shmem|x)?:? ?[0-9]{0,22} ?(kB)?\n?") {
            let _ = parse_meminfo(&text.repeat(3));
        }
    }
}
