//! The command line as typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::engine::{CacheType, DEFAULT_PREFILL_CHUNK, FlashAttention};
use crate::hybrid::{HandoffMode, PrefillMode};

use super::access::AccessArgs;
use super::bench::{self, BenchArgs};
use super::defaults::DefaultsArgs;
use super::endpoints::EndpointArgs;
use super::provider::ProviderCommand;
use super::state::StateCommand;
use super::store::{StoreArgs, StoreCommand};

/// One process that serves a GGUF model with llama.cpp, and restores a prompt's KV cache from an external prefill
/// provider.
#[derive(Debug, Parser)]
#[command(
    name = "onebit",
    disable_version_flag = true,
    arg_required_else_help = true,
    after_help = "Examples:
  onebit serve -m model.gguf
  onebit serve -m model.gguf --device hybrid --prefill-provider npu-prefill
  onebit run -m model.gguf \"Why is the sky blue?\"
  onebit state inspect prompt.state -m model.gguf
  onebit provider check npu-prefill -m model.gguf
  onebit store ls ~/.cache/onebit/prompts
  onebit bench -m model.gguf
  onebit devices

Exit codes: 0 done, 1 failed, 2 wrong or refused flags, 3 the model cannot be loaded, 5 --print-backend with hybrid."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Print the versions of onebit, llama.cpp and the state file, and exit
    #[arg(long, short = 'V', action = ArgAction::SetTrue)]
    pub version: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over an OpenAI-compatible HTTP API
    // The last of two counts, as with llama-server: launchers put their users' flags behind their own.
    #[command(
        args_override_self = true,
        after_help = "llama-server's other flags are accepted, or refused with the reason.

Examples:
  onebit serve -m model.gguf --port 8000
  onebit serve -m model.gguf --device hybrid --prefill-provider onebit-prefill
  curl http://127.0.0.1:8000/v1/chat/completions -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'"
    )]
    Serve(Box<ServeArgs>),
    /// Answer one prompt on the terminal
    #[command(after_help = "Examples:
  onebit run -m model.gguf \"Why is the sky blue?\"
  cat notes.txt | onebit run -m model.gguf --system \"Summarise.\"
  onebit run -m model.gguf --raw -n 32 \"Once upon a time\"")]
    Run(Box<RunArgs>),
    /// Look into sequence-state files, compare them, convert them
    #[command(subcommand)]
    State(StateCommand),
    /// Test a prefill provider
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// List, verify and remove the states of a prefix store
    #[command(subcommand)]
    Store(StoreCommand),
    /// Measure prefill, handoff and decode of a model on this machine
    #[command(after_help = bench::HELP)]
    Bench(Box<BenchArgs>),
    /// List the devices of this build and this machine, and why one is missing
    Devices(DevicesArgs),
    /// Print the licenses of llama.cpp and of what it bundles
    Licenses,
}

/// Which model, and how it is loaded.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// GGUF file
    #[arg(short, long, value_name = "FILE", env = "ONEBIT_MODEL", value_parser = maybe_empty())]
    pub model: PathBuf,

    /// auto, cpu (or none), hrx, hybrid, or a device that `onebit devices` lists
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,

    /// Context length in tokens; 0 is what the model was trained with [default: the same, at most 8192]
    #[arg(short, long, value_name = "N")]
    pub ctx_size: Option<u32>,

    /// Threads that generate [default: one for each physical core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<u32>,

    /// Threads that evaluate prompts [default: as --threads]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads_batch: Option<u32>,

    /// Most tokens in one batch
    #[arg(short, long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,

    /// Most tokens of prompts between two tokens of the answers beside them
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PREFILL_CHUNK, value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_chunk: u32,

    /// With --parallel: one pool of KV cells for all sequences, not a stream for each. Long sequences then cost more, pauses of
    /// one between others less
    #[arg(long, overrides_with = "no_kv_unified")]
    pub kv_unified: bool,

    /// A stream of the KV cache for each sequence, as it is without either
    #[arg(long, overrides_with = "kv_unified", hide = true)]
    pub no_kv_unified: bool,

    /// Most tokens in one pass over the model
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub ubatch_size: u32,

    /// Type of the K cache: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub cache_type_k: CacheType,

    /// Type of the V cache; a quantized one needs flash attention
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub cache_type_v: CacheType,

    /// Fused attention
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t = FlashAttnArg::Auto,
        default_missing_value = "on",
        num_args = 0..=1
    )]
    pub flash_attn: FlashAttnArg,

    /// Layers on the accelerator, or all [default: all]
    #[arg(long, value_name = "N", value_parser = layers)]
    pub gpu_layers: Option<u32>,

    /// ggml RPC server whose devices join this machine's (repeatable, or separated by commas)
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub rpc: Vec<String>,

    /// HSA run-time library for HRX [default: $IREE_HAL_AMDGPU_LIBHSA_PATH, else the first under /opt/rocm-therock]
    #[arg(long, value_name = "FILE")]
    pub hrx_libhsa: Option<PathBuf>,

    /// Chat template (Jinja source) in place of the model's own
    #[arg(long, value_name = "JINJA", conflicts_with = "chat_template_file")]
    pub chat_template: Option<String>,

    /// File with a chat template in place of the model's own
    #[arg(long, value_name = "FILE")]
    pub chat_template_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlashAttnArg {
    Auto,
    #[value(aliases = ["1", "true", "enabled"])]
    On,
    #[value(aliases = ["0", "false", "disabled"])]
    Off,
}

impl From<FlashAttnArg> for FlashAttention {
    fn from(arg: FlashAttnArg) -> Self {
        match arg {
            FlashAttnArg::Auto => FlashAttention::Auto,
            FlashAttnArg::On => FlashAttention::On,
            FlashAttnArg::Off => FlashAttention::Off,
        }
    }
}

/// A number of threads; llama.cpp's -1 is our 0, which chooses.
fn threads(text: &str) -> Result<u32, String> {
    let n: i64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    u32::try_from(n.max(0)).map_err(|_| "is too large".to_owned())
}

/// A number of layers; `all`, `auto` and llama.cpp's -1 are more than any model has.
fn layers(text: &str) -> Result<u32, String> {
    match text {
        "all" | "auto" => Ok(i32::MAX.unsigned_abs()),
        number => match number.parse::<i64>() {
            Ok(n) if n < 0 => Ok(i32::MAX.unsigned_abs()),
            Ok(n) => u32::try_from(n).map_err(|_| "is too large".to_owned()),
            Err(_) => Err("expected a number, `all` or `auto`".to_owned()),
        },
    }
}

/// A number of sequences; llama.cpp's -1 means the default.
fn parallel(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(1),
        Ok(n @ 1..=256) => Ok(n.unsigned_abs() as u32),
        _ => Err("expected a number from 1 to 256".to_owned()),
    }
}

/// A path. An empty one is let through: a variable that is set to nothing counts as not set, and is not clap's to refuse.
fn maybe_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// The external prefill provider of `--device hybrid`.
#[derive(Debug, Args)]
#[command(next_help_heading = "External prefill (--device hybrid)")]
pub struct HybridArgs {
    /// Program that computes a prompt's KV cache (docs/hybrid.md)
    #[arg(long, value_name = "PROGRAM", env = "ONEBIT_HYBRID_PREFILL", value_parser = maybe_empty())]
    pub prefill_provider: Option<PathBuf>,

    /// Start it for each prompt, or once, with --resident, for all of them (docs/hybrid.md, version 1.1)
    #[arg(long, value_name = "MODE", value_enum, default_value_t = PrefillModeArg::Oneshot, env = "ONEBIT_PREFILL_MODE")]
    pub prefill_mode: PrefillModeArg,

    /// Folder that is passed on to it as --elfs
    #[arg(long, value_name = "DIR", env = "ONEBIT_HYBRID_ELFS", value_parser = maybe_empty())]
    pub prefill_elfs: Option<PathBuf>,

    /// Seconds that it may take for one prompt
    #[arg(long, value_name = "S", default_value_t = 120.0)]
    pub prefill_timeout: f64,

    /// When a prompt is handed over: always, never, or auto: where that is expected to be quicker than to evaluate here what
    /// the slot does not hold yet
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = HandoffArg::Always)]
    pub handoff: HandoffArg,

    /// Evaluate prompts of fewer tokens here
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub handoff_min_tokens: usize,

    /// How many waiting requests may have their prompts evaluated while another one is answered
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub prefill_ahead: usize,

    /// Folder for the files that pass between the two [default: /dev/shm when it has room, else the temporary folder]
    #[arg(long, value_name = "DIR")]
    pub slot_dir: Option<PathBuf>,

    /// Look for NaN and infinity in state files
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Switch::On)]
    pub state_scan: Switch,

    /// Compare the values of the first state file, and of every N-th after it, with what is computed here for the prompt's
    /// first 8 tokens; `off` never does
    #[arg(long, value_name = "N", default_value = "32", value_parser = probe)]
    pub state_probe: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HandoffArg {
    Always,
    Auto,
    Never,
}

impl From<HandoffArg> for HandoffMode {
    fn from(arg: HandoffArg) -> Self {
        match arg {
            HandoffArg::Always => Self::Always,
            HandoffArg::Auto => Self::Auto,
            HandoffArg::Never => Self::Never,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrefillModeArg {
    // A variable that is set to nothing counts as not set.
    #[value(alias = "")]
    Oneshot,
    Resident,
}

impl From<PrefillModeArg> for PrefillMode {
    fn from(arg: PrefillModeArg) -> Self {
        match arg {
            PrefillModeArg::Oneshot => PrefillMode::OneShot,
            PrefillModeArg::Resident => PrefillMode::Resident,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// `--state-probe`: a number, or `off`.
fn probe(text: &str) -> Result<u32, String> {
    match text {
        "off" => Ok(0),
        number => number.parse().map_err(|_| "give a number, or `off`".to_owned()),
    }
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub hybrid: HybridArgs,

    #[command(flatten)]
    pub store: StoreArgs,

    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,

    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    pub port: u16,

    /// Name of the model in the API; more names behind commas [default: the file's name without .gguf]
    #[arg(short, long, value_name = "NAME")]
    pub alias: Option<String>,

    /// Sequences decoded at once; 1 with --device hybrid
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parallel)]
    pub parallel: u32,

    /// Print the device that would be used, and exit
    #[arg(long)]
    pub print_backend: bool,

    #[command(flatten)]
    pub access: AccessArgs,

    #[command(flatten)]
    pub endpoints: EndpointArgs,

    #[command(flatten)]
    pub defaults: DefaultsArgs,

    #[command(flatten)]
    pub refused: RefusedArgs,
}

/// Flags of other servers that change what is served, and that onebit does not have: said plainly instead of "unknown".
#[derive(Debug, Args)]
pub struct RefusedArgs {
    #[arg(long, hide = true)]
    pub mtp: bool,
    #[arg(long, hide = true)]
    pub dflash: bool,
    #[arg(long, hide = true, value_name = "FILE")]
    pub mmproj: Option<OsString>,
    #[arg(long, hide = true, value_name = "N")]
    pub moe_slots: Option<OsString>,
    #[arg(long, hide = true)]
    pub pm: bool,
    #[arg(long, hide = true)]
    pub embed: bool,
    #[arg(long, hide = true)]
    pub rerank: bool,
    #[arg(long, hide = true)]
    pub reranking: bool,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub hybrid: HybridArgs,

    #[command(flatten)]
    pub store: StoreArgs,

    /// The prompt; `-`, or none with a pipe, reads it from standard input
    pub prompt: Option<String>,

    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// Take the prompt as it is, without the chat template
    #[arg(long)]
    pub raw: bool,

    /// Most tokens to generate [default: until the model ends]
    #[arg(short = 'n', long, value_name = "N")]
    pub max_tokens: Option<u32>,

    /// Temperature; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub temp: f32,

    /// Seed of the draw [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u32>,
}

#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// ggml RPC server whose devices join this machine's (repeatable)
    #[arg(long, value_name = "HOST:PORT")]
    pub rpc: Vec<String>,

    /// HSA run-time library for HRX
    #[arg(long, value_name = "FILE")]
    pub hrx_libhsa: Option<PathBuf>,
}

/// llama.cpp's flags of one dash and several letters, which launchers use and clap does not know.
const LLAMA_CPP_SPELLINGS: [(&str, &str); 10] = [
    ("-dev", "--device"),
    ("-tb", "--threads-batch"),
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-fa", "--flash-attn"),
    ("-ngl", "--gpu-layers"),
    ("--n-gpu-layers", "--gpu-layers"),
    ("-np", "--parallel"),
    ("--n-predict", "--max-tokens"),
];

/// Replaces llama.cpp's spellings by ours.
pub fn normalize(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut flags_over = false;
    args.into_iter()
        .map(|arg| {
            flags_over |= arg == "--";
            let known = LLAMA_CPP_SPELLINGS.iter().find(|(theirs, _)| !flags_over && arg == *theirs);
            known.map_or(arg, |(_, ours)| OsString::from(ours))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn llama_cpp_spellings_are_understood() {
        let args =
            ["onebit", "serve", "-m", "x.gguf", "-c", "4096", "-ngl", "99", "-np", "2", "-fa", "on", "-ctk", "q8_0"];
        let cli = Cli::try_parse_from(normalize(args.map(OsString::from))).unwrap();
        let Some(Command::Serve(serve)) = cli.command else { panic!("not serve") };
        assert_eq!(serve.model.ctx_size, Some(4096));
        assert_eq!(serve.model.gpu_layers, Some(99));
        assert_eq!(serve.parallel, 2);
        assert_eq!(serve.model.flash_attn, FlashAttnArg::On);
        assert_eq!(serve.model.cache_type_k, CacheType::Q8_0);
    }

    #[test]
    fn a_prompt_after_two_dashes_is_left_alone() {
        let args = ["onebit", "run", "-m", "x", "--", "-ngl"].map(OsString::from);
        assert_eq!(normalize(args).last().unwrap(), "-ngl");
    }
}
