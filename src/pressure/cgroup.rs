//! Memory limits of control groups, version 1 and 2, nested ones included.

/// One level of the hierarchy, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// `None` for no limit.
    pub limit: Option<u64>,
    pub used: u64,
    /// Page cache in it that the kernel would drop before it refuses memory.
    pub reclaimable: u64,
}

impl Level {
    /// What can still be taken here; `None` for no limit.
    pub fn available(&self) -> Option<u64> {
        let used = self.used.saturating_sub(self.reclaimable);
        Some(self.limit?.saturating_sub(used))
    }
}

/// What a group leaves to take, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupBound {
    pub limit: u64,
    pub available: u64,
}

/// The tightest of the levels from a group up to its root, or `None` where nothing limits it. A limit above is as hard
/// as one's own.
pub fn tightest(levels: &[Level]) -> Option<GroupBound> {
    let bound = |level: &Level| Some(GroupBound { limit: level.limit?, available: level.available()? });
    levels.iter().filter_map(bound).min_by_key(|bound| bound.available)
}

/// A level of version 2 from the contents of its files. The root has none of them: pass what there is. `memory.high`
/// counts as a limit, since above it the kernel throttles whoever allocates. `None` if the usage is not there.
pub fn parse_v2(max: Option<&str>, high: Option<&str>, current: Option<&str>, stat: Option<&str>) -> Option<Level> {
    let limit = |text: Option<&str>| text.and_then(|text| text.trim().parse::<u64>().ok());
    let limit = [limit(max), limit(high)].into_iter().flatten().min();
    let used = current?.trim().parse().ok()?;
    Some(Level { limit, used, reclaimable: file_cache(stat, "active_file", "inactive_file") })
}

/// A level of version 1: `memory.limit_in_bytes`, `memory.usage_in_bytes`, `memory.stat`. Without a limit the kernel
/// shows one that is near 2^63.
pub fn parse_v1(limit: &str, usage: &str, stat: Option<&str>) -> Option<Level> {
    const NO_LIMIT: u64 = 1 << 62;
    let limit = limit.trim().parse::<u64>().ok()?;
    let used = usage.trim().parse().ok()?;
    let reclaimable = file_cache(stat, "total_active_file", "total_inactive_file");
    Some(Level { limit: (limit < NO_LIMIT).then_some(limit), used, reclaimable })
}

/// Where this process is, from the contents of `/proc/self/cgroup`: the path of its memory group in version 1, if that
/// controller is mounted there, and in version 2. The levels are that path and all paths above it.
pub fn parse_membership(text: &str) -> (Option<&str>, Option<&str>) {
    let (mut v1, mut v2) = (None, None);
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        if controllers.split(',').any(|controller| controller == "memory") {
            v1 = Some(path);
        } else if id == "0" && controllers.is_empty() {
            v2 = Some(path);
        }
    }
    (v1, v2)
}

fn file_cache(stat: Option<&str>, active: &str, inactive: &str) -> u64 {
    let field = |name: &str| {
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok();
        stat.and_then(|stat| stat.lines().find_map(value)).unwrap_or(0)
    };
    field(active).saturating_add(field(inactive))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_takes_the_lower_of_max_and_high() {
        let stat = "anon 4096\nfile 8192\ninactive_file 4096\nactive_file 1024\n";
        let level = parse_v2(Some("1048576\n"), Some("max\n"), Some("500000\n"), Some(stat)).unwrap();
        assert_eq!(level, Level { limit: Some(1_048_576), used: 500_000, reclaimable: 5120 });
        assert_eq!(parse_v2(Some("max"), Some("9000"), Some("1"), None).unwrap().limit, Some(9000));
        assert_eq!(parse_v2(Some("max"), Some("max"), Some("1"), None).unwrap().available(), None);
        assert_eq!(parse_v2(None, None, None, None), None);
    }

    #[test]
    fn version_1_knows_no_word_for_no_limit() {
        let stat = "cache 9\ninactive_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n";
        assert_eq!(parse_v1("9223372036854771712\n", "4096\n", Some(stat)).unwrap().available(), None);
        assert_eq!(parse_v1("5000", "4600", Some(stat)).unwrap().available(), Some(800));
        assert_eq!(parse_v1("x", "1", None), None);
    }

    #[test]
    fn the_tightest_level_counts() {
        let level = |limit, used| Level { limit, used, reclaimable: 0 };
        let bound = |limit, available| Some(GroupBound { limit, available });
        assert_eq!(tightest(&[level(None, 5), level(Some(100), 10), level(Some(50), 45)]), bound(50, 5));
        assert_eq!(tightest(&[level(Some(10), 20)]), bound(10, 0));
        assert_eq!(tightest(&[level(None, 5)]), None);
    }

    #[test]
    fn the_group_of_a_process_is_found_in_either_version() {
        assert_eq!(parse_membership("0::/user.slice/a:b\n"), (None, Some("/user.slice/a:b")));
        let hybrid = "9:memory:/docker/1\n5:cpu,cpuacct:/x\n0::/system.slice\nrubbish\n";
        assert_eq!(parse_membership(hybrid), (Some("/docker/1"), Some("/system.slice")));
    }
}
