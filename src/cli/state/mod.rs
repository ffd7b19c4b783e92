//! `onebit state`: sequence-state files looked into, compared and converted.

mod convert;
mod diff;
mod heat;
mod inspect;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::engine::{CacheType, Device, Engine, EngineConfig, FlashAttention};
use crate::state::{Layout, StateError};

use super::Failure;
use super::loading::{self, Stop};

/// Enough for the two tokens from which the layout is learnt; llama.cpp makes no smaller context.
const N_CTX: u32 = 256;

#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Show what is in a state file; with a model, whether it would be accepted, and why not
    #[command(after_help = "Examples:
  onebit state inspect prompt.state
  onebit state inspect prompt.state -m model.gguf
  onebit state inspect prompt.state -m model.gguf --cache-type-k q8_0 --cache-type-v q8_0
  onebit state inspect prompt.state --json | jq .sections

Exit codes: 0 the file was read (and with -m: would be accepted), 1 it cannot be read to its end, or would be refused,
2 wrong flags or no such file, 3 the model cannot be loaded.")]
    Inspect(inspect::InspectArgs),
    /// Compare two state files of one model, tensor by tensor
    #[command(
        after_help = "A is the reference. For each tensor: the relative error |A-B| / |A| (L2 norms), the gain (the factor that brings A
closest to B: 1 unless something is scaled), the cosine, the largest and the mean absolute error, and the position of the
largest. Then a line per layer shows where along the positions the error lies.

Examples:
  onebit state diff mine.state theirs.state -m model.gguf
  onebit state diff mine.state theirs.state -m model.gguf --json | jq '.tensors[] | select(.relative_l2 > 0.01)'

Exit codes: 0 compared, however different they are, 1 they cannot be compared, 2 wrong flags or no such file, 3 the
model cannot be loaded."
    )]
    Diff(diff::DiffArgs),
    /// Rewrite a state file in the state version that this build reads
    #[command(
        after_help = "Possible for versions 2 to 4, where the two mean the same: float caches (f32, f16, bf16) of models without M-RoPE.
`onebit serve` does it by itself. OUT appears complete or not at all.

Examples:
  onebit state convert old.state new.state -m model.gguf
  onebit state convert prompt.state prompt.state -m model.gguf --force

Exit codes: 0 converted, 1 it cannot be converted or OUT cannot be written, 2 wrong flags, no such file, or OUT exists,
3 the model cannot be loaded."
    )]
    Convert(convert::ConvertArgs),
}

/// How the model's context is made, as far as it shows in a state file.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Type of the K cache that the file is for
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(super) cache_type_k: CacheType,

    /// Type of the V cache that the file is for
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(super) cache_type_v: CacheType,
}

impl StateCommand {
    /// The command's whole name, for messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            StateCommand::Inspect(_) => "state inspect",
            StateCommand::Diff(_) => "state diff",
            StateCommand::Convert(_) => "state convert",
        }
    }
}

pub(super) fn main(command: &StateCommand) -> Result<(), Failure> {
    match command {
        StateCommand::Inspect(args) => inspect::main(args),
        StateCommand::Diff(args) => diff::main(args),
        StateCommand::Convert(args) => convert::main(args),
    }
}

/// Loads a model for its layout alone: on the CPU, with the smallest context.
pub(super) fn load(model: &Path, cache: &CacheArgs) -> Result<Engine, Failure> {
    let mut config = EngineConfig::new(model);
    config.device = Device::Cpu;
    config.n_ctx = Some(N_CTX);
    config.cache_type_k = cache.cache_type_k;
    config.cache_type_v = cache.cache_type_v;
    config.flash_attention = FlashAttention::On;
    loading::load("onebit state", config, &Stop::default(), true)
}

/// What a server with this model has against a file, if anything.
pub(super) fn refusal(path: &Path, engine: &Engine) -> Result<Option<String>, Failure> {
    inspect::refusal(&mut StateFile::open(path)?, engine)
}

fn layout(engine: &Engine) -> Result<&Layout, Failure> {
    engine.state_layout().map_err(|reason| Failure::new(1, reason))
}

/// A state file on disk. Opened by its name, links followed: the user named it.
struct StateFile {
    path: PathBuf,
    reader: BufReader<File>,
    /// Bytes.
    len: u64,
}

impl StateFile {
    fn open(path: &Path) -> Result<Self, Failure> {
        let fail = |reason: String| Failure::usage(format!("{}: {reason}", path.display()));
        let metadata = std::fs::metadata(path).map_err(|err| fail(err.to_string()))?;
        // Opening a pipe would wait for its writer.
        if !metadata.is_file() {
            return Err(fail("it is not a regular file".to_owned()));
        }
        let file = File::open(path).map_err(|err| fail(err.to_string()))?;
        let reader = BufReader::with_capacity(256 * 1024, file);
        Ok(Self { path: path.to_owned(), reader, len: metadata.len() })
    }

    /// A failure that names the file.
    fn fail(&self, reason: impl std::fmt::Display) -> Failure {
        Failure::new(1, format!("{}: {reason}", self.path.display()))
    }

    /// As [`fail`](Self::fail), of what is wrong with its content.
    fn bad(&self, error: &StateError) -> Failure {
        self.fail(told(error))
    }
}

/// With the operating system's word, if it has one.
fn told(error: &StateError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
