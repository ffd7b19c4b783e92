//! `onebit store rm`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::store::list::{self, Entry};

use super::super::{Failure, print};
use super::{age, families, mebibytes};

/// Digits of a name that name a state.
const MIN_DIGITS: usize = 4;

#[derive(Debug, Args)]
pub struct RmArgs {
    /// Folder of the store
    dir: PathBuf,

    /// States, by the beginning of their names as `onebit store ls` shows them
    #[arg(value_name = "STATE", required_unless_present_any = ["all", "older_than"])]
    states: Vec<String>,

    /// All states
    #[arg(long, conflicts_with_all = ["states", "older_than"])]
    all: bool,

    /// All states that were not used for this long, as 30d, 12h, 90m or 10s
    #[arg(long, value_name = "AGE", value_parser = duration, conflicts_with = "states")]
    older_than: Option<Duration>,
}

pub(super) fn main(args: &RmArgs) -> Result<(), Failure> {
    let entries: Vec<Entry> = families(&args.dir)?.into_iter().flat_map(|family| family.entries).collect();
    let mut chosen: Vec<&Entry> = match args.older_than {
        _ if args.all => entries.iter().collect(),
        Some(limit) => entries.iter().filter(|entry| age(entry) >= limit).collect(),
        None => args.states.iter().map(|name| find(&entries, name)).collect::<Result<_, _>>()?,
    };
    chosen.sort_by(|a, b| a.path.cmp(&b.path));
    chosen.dedup_by(|a, b| a.path == b.path);
    let (mut n_removed, mut n_bytes) = (0, 0);
    let mut failed = None;
    for entry in chosen {
        match std::fs::remove_file(&entry.path) {
            Ok(()) => (n_removed, n_bytes) = (n_removed + 1, n_bytes + entry.n_bytes),
            // A server was faster.
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
            Err(err) => failed = Some(Failure::new(1, format!("{}: {err}", entry.path.display()))),
        }
    }
    list::remove_empty(&args.dir);
    let states = if n_removed == 1 { "state" } else { "states" };
    print(&format!("removed {n_removed} {states}, {}\n", mebibytes(n_bytes)))?;
    failed.map_or(Ok(()), Err)
}

/// The one state whose name begins like this.
fn find<'a>(entries: &'a [Entry], beginning: &str) -> Result<&'a Entry, Failure> {
    if beginning.len() < MIN_DIGITS {
        return Err(Failure::usage(format!("{beginning}: give at least {MIN_DIGITS} digits of a state's name")));
    }
    let mut found = entries.iter().filter(|entry| entry.name.starts_with(beginning));
    match (found.next(), found.next()) {
        (Some(entry), None) => Ok(entry),
        (Some(_), Some(_)) => {
            Err(Failure::usage(format!("{beginning}: several states begin so; give the whole file name")))
        }
        (None, _) => Err(Failure::usage(format!("{beginning}: there is no such state (`onebit store ls` lists them)"))),
    }
}

/// A number of days, hours, minutes or seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "give a number with d, h, m or s behind it, such as 30d".to_owned();
    let unit = match text.chars().last() {
        Some('d') => 86400,
        Some('h') => 3600,
        Some('m') => 60,
        Some('s') => 1,
        _ => return Err(wrong()),
    };
    let n: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    n.checked_mul(unit).map(Duration::from_secs).ok_or_else(|| "is too long".to_owned())
}
