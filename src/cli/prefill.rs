//! `onebit-prefill`: the reference prefill provider. It meets the contract of docs/hybrid.md with this library, on any
//! device of the build, so that `--device hybrid` works on every machine and authors have something to compare with.

mod resident;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;

use crate::engine::{CacheType, Device, Engine, EngineConfig, EngineError, FlashAttention, PrefillReport};
use crate::llama::Token;

use super::{Failure, config::Mode, exit_code, print, require_replaceable, start_log};

/// Compute a prompt's KV cache and write it as a llama.cpp sequence-state file.
#[derive(Debug, Parser)]
#[command(
    name = "onebit-prefill",
    version,
    after_help = "Prints one JSON line: {\"n_tokens\": N, \"argmax\": id, \"prefill_ms\": x}

With --resident it reads one JSON line for each prompt from stdin, {\"id\": 1, \"tokens\": FILE, \"out\": FILE}, and answers it with
{\"id\": 1, \"n_tokens\": N, \"argmax\": id, \"prefill_ms\": x} or {\"id\": 1, \"error\": why}, until stdin ends.

Examples:
  printf '1\\n15\\n27\\n' > ids && onebit-prefill --tokens ids --out state --model model.gguf
  echo '{\"id\": 1, \"tokens\": \"ids\", \"out\": \"state\"}' | onebit-prefill --model model.gguf --resident

Exit codes: 0 done, 1 failed, 2 wrong flags or ids, 3 the model cannot be loaded."
)]
struct PrefillArgs {
    /// File with the prompt's token ids, one decimal number per line
    #[arg(long, value_name = "FILE", required_unless_present = "resident")]
    tokens: Option<PathBuf>,

    /// State file to write
    #[arg(long, value_name = "FILE", required_unless_present = "resident")]
    out: Option<PathBuf>,

    /// Stay, and take prompts from stdin (docs/hybrid.md, version 1.1)
    #[arg(long, conflicts_with_all = ["tokens", "out"])]
    resident: bool,

    /// With --resident, the context length in tokens; a longer prompt is answered with an error [default: the model's,
    /// at most 8192, and the model is loaded anew with more for a longer prompt]
    #[arg(long, value_name = "N", env = "ONEBIT_PREFILL_CTX_SIZE", value_parser = clap::value_parser!(u32).range(1..))]
    ctx_size: Option<u32>,

    /// GGUF file
    #[arg(long, value_name = "FILE")]
    model: PathBuf,

    /// Accepted because the contract has it; this provider needs none
    #[arg(long, value_name = "DIR")]
    elfs: Option<PathBuf>,

    /// auto, cpu, hrx, or a device that `onebit devices` lists
    #[arg(long, value_name = "DEVICE", default_value = "auto", env = "ONEBIT_PREFILL_DEVICE")]
    device: String,

    /// Threads [default: one for each physical core]
    #[arg(long, value_name = "N", env = "ONEBIT_PREFILL_THREADS")]
    threads: Option<u32>,

    /// Type of the K cache; must be what the server uses
    #[arg(long, value_name = "TYPE", default_value = "f16", env = "ONEBIT_PREFILL_CACHE_TYPE_K")]
    cache_type_k: CacheType,

    /// Type of the V cache; must be what the server uses
    #[arg(long, value_name = "TYPE", default_value = "f16", env = "ONEBIT_PREFILL_CACHE_TYPE_V")]
    cache_type_v: CacheType,
}

/// Runs `onebit-prefill` with these arguments (the first is the program's name).
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match PrefillArgs::try_parse_from(arguments) {
        Ok(args) => args,
        Err(err) => {
            let _ = err.print();
            return ExitCode::from(u8::try_from(err.exit_code()).unwrap_or(2));
        }
    };
    start_log();
    exit_code("onebit-prefill", run(&args))
}

fn run(args: &PrefillArgs) -> Result<(), Failure> {
    let (Some(tokens), Some(out)) = (&args.tokens, &args.out) else { return resident::run(args) };
    let ids = read_ids(tokens)?;
    let mut config = engine_config(args)?;
    config.n_ctx = Some(context_for(ids.len()));
    let engine = Engine::load(config)?;
    let report = prefill(out, |path| engine.prefill_to_file(ids, path))?;
    engine.shutdown();
    print(&format!("{}\n", reply(&report)))
}

fn reply(report: &PrefillReport) -> serde_json::Value {
    let milliseconds = (report.evaluate.as_secs_f64() * 1e6).round() / 1e3;
    json!({"n_tokens": report.n_tokens, "argmax": report.argmax.0, "prefill_ms": milliseconds})
}

/// Room for one more, which the engine wants to see; a state file does not depend on the size of the context.
fn context_for(n_ids: usize) -> u32 {
    u32::try_from(n_ids.saturating_add(1)).unwrap_or(u32::MAX)
}

/// One id per line; empty lines count for nothing.
fn read_ids(path: &Path) -> Result<Vec<Token>, Failure> {
    let text =
        std::fs::read_to_string(path).map_err(|err| Failure::usage(format!("--tokens {}: {err}", path.display())))?;
    let mut ids = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty()) {
        let id = line.parse().map_err(|_| {
            Failure::usage(format!("--tokens {}: line {}: `{line}` is no token id", path.display(), index + 1))
        })?;
        ids.push(Token(id));
    }
    if ids.is_empty() {
        return Err(Failure::usage(format!("--tokens {}: no ids", path.display())));
    }
    Ok(ids)
}

fn engine_config(args: &PrefillArgs) -> Result<EngineConfig, Failure> {
    let Mode::Local(device) = Mode::parse(&args.device) else {
        return Err(Failure::usage("--device hybrid: a provider computes by itself"));
    };
    let mut config = EngineConfig::new(&args.model);
    config.device = if device == Device::Auto { Device::Auto } else { device };
    config.n_threads = args.threads;
    config.cache_type_k = args.cache_type_k;
    config.cache_type_v = args.cache_type_v;
    config.flash_attention = FlashAttention::On;
    config.warmup = false;
    Ok(config)
}

/// Writes under a temporary name and renames, so that nobody ever sees half a file.
fn prefill(
    out: &Path,
    write: impl FnOnce(&Path) -> Result<PrefillReport, EngineError>,
) -> Result<PrefillReport, Failure> {
    require_replaceable(out)?;
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot_write = |err: std::io::Error| Failure::new(1, format!("--out {}: {err}", out.display()));
    let partial = tempfile::Builder::new().prefix(".prefill-").tempfile_in(folder).map_err(cannot_write)?;
    let report = write(partial.path()).map_err(|err| Failure::new(1, err.to_string()))?;
    partial.persist(out).map_err(|err| cannot_write(err.error))?;
    Ok(report)
}
