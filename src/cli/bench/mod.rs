//! `onebit bench`: how fast this build is with a model on this machine.

mod measure;
mod origin;
mod row;
mod svg;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, EngineConfig};
use crate::hybrid::{Hybrid, LineSink};

use super::args::{HybridArgs, ModelArgs};
use super::config::{self, Mode};
use super::loading::{self, Stop};
use super::run::signalled;
use super::{Failure, hrx, print, require_replaceable};
use measure::{Prompts, Sample};
use origin::Origin;
use row::{Kind, Row};

const NAME: &str = "onebit bench";

/// Runs of each combination before those that count.
const N_WARM_UP: u32 = 1;

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    hybrid: HybridArgs,

    /// Lengths of the prompts in tokens, behind commas
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "512,2048",
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    prompt_tokens: Vec<u32>,

    /// Tokens that are generated after a prompt
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    gen_tokens: u32,

    /// Sequences at once, behind commas; a provider serves one at a time
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: Vec<u32>,

    /// Runs of each combination that count, after one that does not
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,

    /// One JSON object in place of the table
    #[arg(long)]
    json: bool,

    /// Draw the results as a bar chart into this file too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The text below `onebit bench --help`.
pub(super) const HELP: &str = "Columns: the provider's whole run; prefill, the time until the prompts are in the memory; restore, the check of the
provider's file and its load; first byte, from the start to the first text (of the last sequence, when there are several);
handoff, the first byte without the provider's run; decode, tokens a second of all sequences together. Each is the median of
the runs, with the least and the most in brackets. Prompts are made of the vocabulary's tokens, always the same ones, and no
two runs have the same prompt.

Examples:
  onebit bench -m model.gguf
  onebit bench -m model.gguf --prefill-provider onebit-prefill --prompt-tokens 2048
  onebit bench -m model.gguf --parallel 1,4 --runs 5 --svg bench.svg
  onebit bench -m model.gguf --json | jq '.rows[] | {mode, prompt_tokens, decode: .decode_tokens_per_s.median}'

Exit codes: 0 measured, 1 something failed (the provider, say), 2 wrong flags or a combination that does not fit, 3 the model
cannot be loaded.";

pub(super) fn main(args: &BenchArgs) -> Result<(), Failure> {
    let setup = Setup::new(args)?;
    if let Err(reason) = hrx::prepare(args.model.hrx_libhsa.as_deref()) {
        tracing::warn!("HRX: {reason}");
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|err| Failure::new(1, format!("cannot start: {err}")))?;
    let report = runtime.block_on(async {
        let interrupt = Interrupt::watch();
        let bench = Bench { args, setup: &setup, interrupt: &interrupt, progress: progress(&setup) };
        let report = bench.run().await;
        bench.progress.finish_and_clear();
        report
    })?;
    print(&if args.json { format!("{:#}\n", table::as_json(&report)) } else { table::text(&report) })?;
    let Some(path) = &args.svg else { return Ok(()) };
    std::fs::write(path, svg::draw(&report)).map_err(|err| Failure::new(1, format!("--svg {}: {err}", path.display())))
}

/// What was measured, and with what.
struct Report {
    origin: Origin,
    rows: Vec<Row>,
}

/// What is to be measured, found possible as far as that can be known before the model is loaded.
struct Setup {
    /// The device that prompts and answers are computed on.
    local: Mode,
    /// The device that decodes after a handoff; `None` without a provider.
    hybrid: Option<Mode>,
    /// Tokens that one sequence needs room for.
    n_ctx: u32,
    n_rows: usize,
    n_runs: u32,
}

impl Setup {
    fn new(args: &BenchArgs) -> Result<Self, Failure> {
        let mode = Mode::parse(&args.model.device);
        let provider = args.hybrid.prefill_provider.as_deref().filter(|path| !path.as_os_str().is_empty());
        if mode == Mode::Hybrid && provider.is_none() {
            return Err(Failure::usage("--device hybrid: name a provider with --prefill-provider"));
        }
        if provider.is_some() {
            config::refuse_without_flash(&Mode::Hybrid, &args.model)?;
        }
        // A device that was named is meant for both.
        let hybrid = provider.map(|_| match &mode {
            Mode::Local(crate::engine::Device::Auto) => Mode::Hybrid,
            mode => mode.clone(),
        });
        if let Some(path) = &args.svg {
            require_writable(path)?;
        }
        let n_prompt = args.prompt_tokens.iter().copied().max().unwrap_or(0);
        // The prompt's one token more (see `measure`), and the first token of an answer comes without a decode.
        let n_ctx = n_prompt + args.gen_tokens + 2;
        if let Some(n @ 1..) = args.model.ctx_size.filter(|&n| n < n_ctx) {
            return Err(does_not_fit(args, n_ctx, &format!("--ctx-size is {n}: raise it, or")));
        }
        let n_rows = args.prompt_tokens.len() * (args.parallel.len() + usize::from(hybrid.is_some()));
        Ok(Self { local: mode, hybrid, n_ctx, n_rows, n_runs: args.runs })
    }
}

fn does_not_fit(args: &BenchArgs, n_ctx: u32, limit: &str) -> Failure {
    let n_prompt = args.prompt_tokens.iter().max().unwrap_or(&0);
    Failure::usage(format!(
        "a prompt of {n_prompt} tokens and {} generated ones need a context of {n_ctx} tokens, and {limit} give fewer with \
         --prompt-tokens or --gen-tokens",
        args.gen_tokens
    ))
}

/// Hours of measuring are not to be lost to a mistyped folder.
fn require_writable(path: &Path) -> Result<(), Failure> {
    require_replaceable(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if folder.is_dir() {
        return Ok(());
    }
    Err(Failure::usage(format!("--svg {}: {} is no folder", path.display(), folder.display())))
}

/// A signal that asks for an end. Watched from the start to the end, because the usual way of a signal is closed then.
struct Interrupt {
    token: CancellationToken,
    code: Arc<AtomicU8>,
    stop_loading: Stop,
}

impl Interrupt {
    fn watch() -> Self {
        let (token, code, stop_loading) = (CancellationToken::new(), Arc::new(AtomicU8::new(0)), Stop::default());
        tokio::spawn({
            let (token, code, stop_loading) = (token.clone(), code.clone(), stop_loading.clone());
            async move {
                code.store(signalled().await, Ordering::Relaxed);
                stop_loading.store(true, Ordering::Relaxed);
                token.cancel();
            }
        });
        Self { token, code, stop_loading }
    }

    /// The work's result, unless a signal comes first; the work is dropped then, which stops it.
    async fn or<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            result = work => result,
            () = self.token.cancelled() => Err(self.failure()),
        }
    }

    fn failure(&self) -> Failure {
        Failure::new(self.code.load(Ordering::Relaxed), "")
    }
}

fn progress(setup: &Setup) -> ProgressBar {
    // It hides itself where stderr is no terminal.
    let n_runs = setup.n_rows as u64 * u64::from(setup.n_runs + N_WARM_UP);
    let style = ProgressStyle::with_template("{msg} [{bar:30}] run {pos} of {len}");
    ProgressBar::with_draw_target(Some(n_runs), ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

struct Bench<'a> {
    args: &'a BenchArgs,
    setup: &'a Setup,
    interrupt: &'a Interrupt,
    progress: ProgressBar,
}

impl Bench<'_> {
    async fn run(&self) -> Result<Report, Failure> {
        let (mut rows, mut origin) = (Vec::new(), None);
        for &parallel in &self.args.parallel {
            let config = self.config(&self.setup.local, parallel)?;
            let engine = self.load(config.clone()).await?;
            origin.get_or_insert_with(|| Origin::new(self.args, &config, engine.info()));
            let measured = self.interrupt.or(self.cold(&engine, parallel, &mut rows)).await;
            shut_down(engine).await;
            measured?;
        }
        if let Some(mode) = &self.setup.hybrid {
            self.hybrid(mode, &mut rows).await?;
        }
        let origin = origin.ok_or_else(|| Failure::usage("--parallel: give at least one number"))?;
        Ok(Report { origin, rows })
    }

    fn config(&self, mode: &Mode, parallel: u32) -> Result<EngineConfig, Failure> {
        let mut config = config::engine_config(mode, &self.args.model, &self.args.hybrid, parallel)?;
        config.n_ctx = self.args.model.ctx_size.or(Some(self.setup.n_ctx));
        Ok(config)
    }

    async fn load(&self, config: EngineConfig) -> Result<Engine, Failure> {
        let stop = self.interrupt.stop_loading.clone();
        self.say("loading");
        let load = tokio::task::spawn_blocking(move || loading::load(NAME, config, &stop, true));
        let loaded = load.await.unwrap_or_else(|err| Err(Failure::new(1, format!("loading failed: {err}"))));
        if self.interrupt.token.is_cancelled() {
            return Err(self.interrupt.failure());
        }
        let engine = loaded?;
        let (n_ctx, info) = (self.setup.n_ctx, engine.info());
        if info.n_ctx < n_ctx {
            return Err(does_not_fit(self.args, n_ctx, &format!("the context has {}:", info.n_ctx)));
        }
        if self.args.model.ctx_size.is_none() && info.n_ctx_train < n_ctx {
            let limit = format!("the model was trained for {}: allow it with --ctx-size {n_ctx}, or", info.n_ctx_train);
            return Err(does_not_fit(self.args, n_ctx, &limit));
        }
        Ok(engine)
    }

    async fn cold(&self, engine: &Engine, parallel: u32, rows: &mut Vec<Row>) -> Result<(), Failure> {
        let prompts = Prompts::new(engine);
        for &n_prompt in &self.args.prompt_tokens {
            let mut samples = Vec::new();
            for run in 0..self.args.runs + N_WARM_UP {
                self.say(&format!("{n_prompt} tokens, {parallel} at once"));
                let batch = prompts.of_run(run, parallel, n_prompt);
                samples.push(measure::cold(engine, batch, self.args.gen_tokens).await?);
                self.progress.inc(1);
            }
            rows.push(row(engine, Kind::Cold, n_prompt, parallel, &samples));
        }
        Ok(())
    }

    async fn hybrid(&self, mode: &Mode, rows: &mut Vec<Row>) -> Result<(), Failure> {
        let mut engine_config = self.config(mode, 1)?;
        // A state file is for this, whatever the device that was named.
        engine_config.flash_attention = crate::engine::FlashAttention::On;
        let (lines, sink) = last_line();
        let mut hybrid_config = config::hybrid_config(&self.args.model, &self.args.hybrid)?;
        hybrid_config.report = sink;
        let engine = self.load(engine_config).await?;
        let hybrid = Hybrid::new(engine.clone(), hybrid_config).map_err(|err| Failure::new(1, err.to_string()))?;
        let measured = self.interrupt.or(self.handoffs(&engine, &hybrid, rows)).await;
        hybrid.close().await;
        shut_down(engine).await;
        measured.map_err(|failure| match lines.lock().take() {
            // What the provider said last is why there was no handoff.
            Some(line) if failure.code == 1 => Failure::new(1, format!("{} ({line})", failure.message)),
            _ => failure,
        })
    }

    async fn handoffs(&self, engine: &Engine, hybrid: &Hybrid, rows: &mut Vec<Row>) -> Result<(), Failure> {
        let prompts = Prompts::new(engine);
        for &n_prompt in &self.args.prompt_tokens {
            let mut samples = Vec::new();
            for run in 0..self.args.runs + N_WARM_UP {
                self.say(&format!("{n_prompt} tokens, handed over"));
                let prompt = prompts.of_run(run, 1, n_prompt).swap_remove(0);
                samples.push(measure::handoff(hybrid, prompt, self.args.gen_tokens).await?);
                self.progress.inc(1);
            }
            rows.push(row(engine, Kind::Hybrid, n_prompt, 1, &samples));
        }
        Ok(())
    }

    fn say(&self, what: &str) {
        self.progress.set_message(what.to_owned());
    }
}

fn row(engine: &Engine, kind: Kind, n_prompt: u32, parallel: u32, samples: &[Sample]) -> Row {
    Row::new(engine.info().device.clone(), kind, n_prompt, parallel, &samples[N_WARM_UP as usize..])
}

/// The last line that a handoff had to say, its times and the provider's own lines among them.
fn last_line() -> (Arc<parking_lot::Mutex<Option<String>>>, LineSink) {
    let last = Arc::new(parking_lot::Mutex::new(None));
    let sink = LineSink::new({
        let last = last.clone();
        move |line| *last.lock() = Some(line.to_owned())
    });
    (last, sink)
}

async fn shut_down(engine: Engine) {
    let _ = tokio::task::spawn_blocking(move || engine.shutdown()).await;
}
