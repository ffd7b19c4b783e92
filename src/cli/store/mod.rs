//! `onebit store`: what a prefix store holds. And the flags with which one is used.

mod ls;
mod rm;
mod verify;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};

use crate::store::list::{self, Entry, Family};
use crate::store::{DEFAULT_MAX_BYTES, DEFAULT_MIN_TOKENS, StoreConfig};

use super::Failure;

/// Keeping the states of long prompts on disk.
#[derive(Debug, Args)]
#[command(next_help_heading = "Prefix store")]
pub struct StoreArgs {
    /// Folder in which the states of long prompts are kept: they are not evaluated again after a restart
    /// (docs/prefix-store.md)
    #[arg(long, value_name = "DIR")]
    pub prefix_store: Option<PathBuf>,

    /// Most bytes in it, as 500M or 8G; the states that were not used for longest go first [default: 8G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    prefix_store_size: Option<u64>,

    /// Tokens from which on a prompt is kept, and a kept one is worth reading
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MIN_TOKENS)]
    prefix_store_min_tokens: usize,
}

impl StoreArgs {
    /// `with_provider`: prompts may come from one.
    pub(super) fn config(&self, with_provider: bool) -> Option<StoreConfig> {
        let dir = self.prefix_store.clone().filter(|dir| !dir.as_os_str().is_empty())?;
        Some(StoreConfig {
            dir,
            max_bytes: self.prefix_store_size.unwrap_or(DEFAULT_MAX_BYTES),
            min_tokens: self.prefix_store_min_tokens,
            with_foreign: with_provider,
        })
    }
}

/// Bytes: a number, and K, M, G or T (powers of 1024) behind it.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || "give a number of bytes, or one with K, M, G or T behind it, such as 500M or 8G".to_owned();
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
    let unit = upper.chars().last().and_then(|last| "KMGT".find(last));
    let digits = if unit.is_some() { &upper[..upper.len() - 1] } else { upper };
    let n: u64 = digits.trim().parse().map_err(|_| wrong())?;
    let bytes = unit.map_or(Some(n), |unit| n.checked_mul(1 << (10 * (unit + 1))));
    bytes.ok_or_else(|| "is too large".to_owned())
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// List the states of a prefix store, by model
    #[command(after_help = "Examples:
  onebit store ls ~/.cache/onebit/prompts
  onebit store ls ~/.cache/onebit/prompts --json | jq '[.models[].states[].bytes] | add'

Exit codes: 0 listed, 2 wrong flags or no such folder.")]
    Ls(ls::LsArgs),
    /// Remove states from a prefix store; servers that use it go on
    #[command(after_help = "Examples:
  onebit store rm ~/.cache/onebit/prompts 4f2a91c07b11
  onebit store rm ~/.cache/onebit/prompts --older-than 30d
  onebit store rm ~/.cache/onebit/prompts --all

Exit codes: 0 removed, 1 one could not be removed, 2 wrong flags, no such folder, no such state.")]
    Rm(rm::RmArgs),
    /// Read every state of a prefix store and say which are bad
    #[command(
        after_help = "Each file is read to its end: its bytes must be those that were written, and be a state. With a model, its states are also
checked against it, as `onebit state inspect -m` does. Servers check by themselves what they restore, and remove what is bad.

Examples:
  onebit store verify ~/.cache/onebit/prompts
  onebit store verify ~/.cache/onebit/prompts -m model.gguf

Exit codes: 0 all are good, 1 one is bad (or, with -m, none is of that model), 2 wrong flags or no such folder, 3 the model
cannot be loaded."
    )]
    Verify(verify::VerifyArgs),
}

impl StoreCommand {
    /// The command's whole name, for messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            StoreCommand::Ls(_) => "store ls",
            StoreCommand::Rm(_) => "store rm",
            StoreCommand::Verify(_) => "store verify",
        }
    }
}

pub(super) fn main(command: &StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Ls(args) => ls::main(args),
        StoreCommand::Rm(args) => rm::main(args),
        StoreCommand::Verify(args) => verify::main(args),
    }
}

fn families(dir: &Path) -> Result<Vec<Family>, Failure> {
    list::families(dir).map_err(|err| Failure::usage(format!("{}: {err}", dir.display())))
}

/// As much of a name as tells states apart, and as `store rm` takes.
fn short(entry: &Entry) -> &str {
    entry.name.get(..12).unwrap_or(&entry.name)
}

/// In words, what a family is for.
fn title(family: &Family) -> String {
    match &family.about {
        Some(about) => {
            let long = if about.long_rope { ", beyond its own context" } else { "" };
            let (k, v) = (&about.cache_type_k, &about.cache_type_v);
            format!("{} ({}), K {k}, V {v}{long}", about.model, about.description)
        }
        None => format!("unknown model {}", family.key),
    }
}

fn mebibytes(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    format!("{mebibytes:.1} MiB")
}

fn age(entry: &Entry) -> Duration {
    SystemTime::now().duration_since(entry.used).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1234", 1234),
            ("4k", 4096),
            ("500M", 500 << 20),
            ("8G", 8 << 30),
            ("8GiB", 8 << 30),
            ("2TB", 2 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "8X", "-1", "1.5G", "99999999999T", "8é"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
