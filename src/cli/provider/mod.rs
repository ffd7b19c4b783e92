//! `onebit provider check`.

mod show;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio_util::sync::CancellationToken;

use crate::engine::{CacheType, Engine, EngineConfig, FlashAttention};
use crate::hybrid::conformance::{self, CheckError, Report, Settings, limits};
use crate::hybrid::{HandoffMode, HybridConfig, LineSink};

use super::args::PrefillModeArg;
use super::config::{Mode, supervisor};
use super::loading::{self, Stop};
use super::run::signalled;
use super::{Failure, hrx, print};

const NAME: &str = "onebit provider check";

#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// Find out whether a program is a prefill provider, and what is wrong with it if not
    #[command(
        after_help = "Runs PROGRAM on prompts of 1 to 2000 tokens and on a repeated phrase, unicode and special tokens, and compares its
state files with those this build computes itself; then makes sure that it fails when it must, and that a resident one stays. Columns: the contract (argv,
exit status, reply, file), the file's structure, the largest relative error of a tensor, the argmax, the KL divergence of the
next token's distribution in nats, how many of 32 greedy tokens agree, and the time of the whole run. A fault is said in one
line each. docs/writing-a-provider.md has the limits and the reasons for them.

Examples:
  onebit provider check onebit-prefill -m model.gguf
  onebit provider check ./npu-prefill -m model.gguf --elfs ./kernels --timeout 600
  onebit provider check ./npu-prefill -m model.gguf --prefill-mode resident
  onebit provider check ./npu-prefill -m model.gguf --json | jq '.prompts[] | select(.faults != [])'

Exit codes: 0 nothing is wrong, 1 something is, 2 wrong flags, 3 the model cannot be loaded."
    )]
    Check(Box<CheckArgs>),
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The provider: a path, or a name that is looked up in PATH
    program: PathBuf,

    /// GGUF file
    #[arg(short, long, value_name = "FILE", env = "ONEBIT_MODEL")]
    model: PathBuf,

    /// Check it as a program that is started for each prompt, or as one that is started once (docs/hybrid.md, version 1.1)
    #[arg(long, value_name = "MODE", value_enum, default_value_t = PrefillModeArg::Oneshot)]
    prefill_mode: PrefillModeArg,

    /// Folder that is passed on to the provider as --elfs
    #[arg(long, value_name = "DIR", env = "ONEBIT_HYBRID_ELFS")]
    elfs: Option<PathBuf>,

    /// Most KL divergence, in nats, of the next token's distribution after any prompt. Honest arithmetic
    /// costs up to 0.04 with small models in 4 bits, and much less with others
    #[arg(long, value_name = "X", default_value_t = limits::MAX_KL)]
    max_kl: f64,

    /// Seconds that the provider may take for one prompt
    #[arg(long, value_name = "S", default_value_t = 120.0)]
    timeout: f64,

    /// Type of the K cache that the provider writes
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    cache_type_k: CacheType,

    /// Type of the V cache that the provider writes
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    cache_type_v: CacheType,

    /// Context length in tokens; longer prompts are left out [default: the model's, at most 8192]
    #[arg(short, long, value_name = "N")]
    ctx_size: Option<u32>,

    /// What this build computes its own states on: hybrid (HRX if there is one, else the CPU), auto, cpu, or a device
    /// that `onebit devices` lists
    #[arg(long, value_name = "DEVICE", default_value = "hybrid")]
    device: String,

    /// Threads of this build [default: one for each physical core]
    #[arg(short, long, value_name = "N")]
    threads: Option<u32>,

    /// Folder for the files that pass between the two [default: /dev/shm when it has room, else the temporary folder]
    #[arg(long, value_name = "DIR")]
    slot_dir: Option<PathBuf>,

    /// One JSON object in place of the table
    #[arg(long)]
    json: bool,
}

pub(super) fn main(command: &ProviderCommand) -> Result<(), Failure> {
    let ProviderCommand::Check(args) = command;
    let settings = settings(args)?;
    if let Err(reason) = hrx::prepare(None) {
        tracing::warn!("HRX: {reason}");
    }
    let engine = loading::load(NAME, engine_config(args), &Stop::default(), true)?;
    if !args.json {
        print(&show::head(&settings, engine.info()))?;
    }
    let report = check(&engine, settings.clone(), args.json)?;
    print(&if args.json {
        format!("{:#}\n", show::as_json(&settings, engine.info(), &report))
    } else {
        show::tail(&report)
    })?;
    // Everything was said.
    if report.passed() { Ok(()) } else { Err(Failure::new(1, "")) }
}

fn settings(args: &CheckArgs) -> Result<Settings, Failure> {
    // A bare name is looked up in PATH, as by the server.
    if args.program.components().count() > 1 && !args.program.exists() {
        return Err(Failure::usage(format!("{}: there is no such program", args.program.display())));
    }
    let timeout = Duration::try_from_secs_f64(args.timeout).ok().filter(|timeout| !timeout.is_zero());
    let timeout = timeout
        .ok_or_else(|| Failure::usage(format!("--timeout {}: give a number of seconds above 0", args.timeout)))?;
    if args.max_kl.is_nan() || args.max_kl < 0.0 {
        return Err(Failure::usage(format!("--max-kl {}: give a number of nats, 0 or above", args.max_kl)));
    }
    let hybrid = HybridConfig {
        provider: Some(args.program.clone()),
        mode: args.prefill_mode.into(),
        elfs: args.elfs.clone().filter(|path| !path.as_os_str().is_empty()),
        model: args.model.clone(),
        timeout,
        slot_dir: args.slot_dir.clone(),
        supervisor: supervisor(),
        // What it says when it fails is in the reason; the rest would tear the table apart.
        report: LineSink::new(|_| {}),
        handoff: HandoffMode::Always,
        min_tokens: 0,
        prefill_ahead: 0,
    };
    Ok(Settings { hybrid, max_kl: args.max_kl })
}

/// As `onebit serve --device hybrid` would load it.
fn engine_config(args: &CheckArgs) -> EngineConfig {
    let mut config = EngineConfig::new(&args.model);
    config.device = Mode::parse(&args.device).decode_device();
    config.n_ctx = args.ctx_size;
    config.n_threads = args.threads;
    config.cache_type_k = args.cache_type_k;
    config.cache_type_v = args.cache_type_v;
    config.flash_attention = FlashAttention::On;
    // The kit compares every value of every file. A probe would refuse a file that the kit is to explain.
    config.state_probe = None;
    config
}

/// Shows each prompt's row as soon as there is one, and ends in good order when a signal asks for it.
fn check(engine: &Engine, settings: Settings, quiet: bool) -> Result<Report, Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(|err| Failure::new(1, format!("cannot start: {err}")))?;
    let cancel = CancellationToken::new();
    let work = runtime.spawn_blocking({
        let (engine, cancel, handle) = (engine.clone(), cancel.clone(), runtime.handle().clone());
        move || {
            conformance::run(&engine, &settings, &handle, &cancel, |outcome| {
                // Nobody reads any more: the verdict is still the exit status.
                if !quiet {
                    let _ = print(&show::row(outcome));
                }
            })
        }
    });
    let result = runtime.block_on(async {
        tokio::pin!(work);
        tokio::select! {
            done = &mut work => done,
            code = signalled() => {
                cancel.cancel();
                // Ends what this build is computing; then the slot directory goes.
                engine.shutdown();
                let _ = work.await;
                return Err(Failure::new(code, ""));
            }
        }
        .map_err(|error| Failure::new(1, format!("the check failed: {error}")))
    })?;
    result.map_err(|error: CheckError| Failure::new(1, error.to_string()))
}
