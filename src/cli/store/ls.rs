//! `onebit store ls`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};

use crate::store::list::{Entry, Family};

use super::super::{Failure, print};
use super::{age, families, mebibytes, short, title};

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Folder of the store
    dir: PathBuf,

    /// One JSON object in place of text
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: &LsArgs) -> Result<(), Failure> {
    let families = families(&args.dir)?;
    if args.json {
        let models: Vec<Value> = families.iter().map(family_json).collect();
        let object = json!({"dir": args.dir.display().to_string(), "models": models});
        return print(&format!("{object:#}\n"));
    }
    print(&as_text(&families))
}

fn as_text(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.entries.is_empty()) {
        let _ = writeln!(text, "{}: {}", title(family), count(&family.entries));
        for entry in &family.entries {
            let tokens = entry.n_tokens.as_ref().map_or_else(|_| "unreadable".to_owned(), |n| format!("{n} tokens"));
            let (size, used) = (mebibytes(entry.n_bytes), short_age(age(entry)));
            let origin = if entry.is_foreign { "  from a provider" } else { "" };
            let _ = writeln!(text, "  {}  {tokens:>13}  {size:>12}  used {used}{origin}", short(entry));
        }
    }
    if text.is_empty() { "no states\n".to_owned() } else { text }
}

fn count(entries: &[Entry]) -> String {
    let bytes = mebibytes(entries.iter().map(|entry| entry.n_bytes).sum());
    match entries.len() {
        1 => format!("1 state, {bytes}"),
        n => format!("{n} states, {bytes}"),
    }
}

fn short_age(age: Duration) -> String {
    match age.as_secs() {
        0..60 => "just now".to_owned(),
        seconds @ 60..3600 => format!("{} min ago", seconds / 60),
        seconds @ 3600..86400 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} d ago", seconds / 86400),
    }
}

fn family_json(family: &Family) -> Value {
    json!({
        "identity": family.key,
        "about": family.about,
        "states": family.entries.iter().map(entry_json).collect::<Vec<_>>(),
    })
}

fn entry_json(entry: &Entry) -> Value {
    json!({
        "name": entry.name,
        "file": entry.path.display().to_string(),
        "tokens": entry.n_tokens.as_ref().ok(),
        "problem": entry.n_tokens.as_ref().err(),
        "bytes": entry.n_bytes,
        "used": entry.used.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        "from_provider": entry.is_foreign,
    })
}
