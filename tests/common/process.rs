//! Waiting for things, and looking at processes.

use std::path::Path;
use std::time::{Duration, Instant};

/// For what takes milliseconds on an idle machine.
pub const SOON: Duration = Duration::from_secs(20);

/// Polls until `look` finds something; panics, saying `what` it was, when the time is up.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < limit, "in vain for {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As [`wait_for`], for a condition.
pub fn until(what: &str, limit: Duration, condition: impl Fn() -> bool) {
    wait_for(what, limit, || condition().then_some(()));
}

/// Waits until a script has written `n` process ids, one a line, and returns them.
pub fn written_pids(path: &Path, n: usize) -> Vec<i32> {
    wait_for("process ids in a file", SOON, || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let pids: Vec<i32> =
            text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect();
        (pids.len() == n).then_some(pids)
    })
}

/// Whether the process exists and is no zombie.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

/// Waits until none of the processes is left.
pub fn until_gone(pids: &[i32], limit: Duration) {
    until(&format!("the end of {pids:?}"), limit, || pids.iter().all(|pid| !is_alive(*pid)));
}

/// Memory that the process has; 0 when it has ended.
pub fn resident_mebibytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kibibytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    kibibytes.unwrap_or(0u64) / 1024
}
