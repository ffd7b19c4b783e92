//! The smallest prefill provider on this library: an engine, a file, one line of JSON.
//!
//! ```sh
//! cargo build --release --example minimal
//! onebit provider check target/release/examples/minimal -m model.gguf
//! ```
//!
//! `onebit-prefill` does the same with flags for devices and cache types. docs/writing-a-provider.md has the contract.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use onebit::engine::{Engine, EngineConfig, FlashAttention, PrefillReport};
use onebit::llama::Token;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // The server shows these lines, and falls back to its own prefill.
        Err(error) => {
            eprintln!("minimal: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the command line says.
#[derive(Default)]
struct Args {
    tokens: PathBuf,
    out: PathBuf,
    model: PathBuf,
}

fn run() -> Result<(), Box<dyn Error>> {
    let args = parse(std::env::args().skip(1))?;
    let ids = read_ids(&args.tokens)?;

    let mut config = EngineConfig::new(args.model);
    // Room for the prompt and one token more, which the engine insists on.
    config.n_ctx = Some(u32::try_from(ids.len() + 1)?);
    // Without it V would be stored transposed, which no state file may be.
    config.flash_attention = FlashAttention::On;
    config.warmup = false;
    let engine = Engine::load(config)?;

    let report = write_state(&engine, ids, &args.out)?;
    let (n_tokens, argmax) = (report.n_tokens, report.argmax);
    let milliseconds = report.evaluate.as_secs_f64() * 1e3;
    println!(r#"{{"n_tokens": {n_tokens}, "argmax": {argmax}, "prefill_ms": {milliseconds:.3}}}"#);
    Ok(())
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, Box<dyn Error>> {
    let mut args = Args::default();
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--tokens" => args.tokens = value.into(),
            "--out" => args.out = value.into(),
            "--model" => args.model = value.into(),
            // Whatever an accelerator needs; this one needs nothing.
            "--elfs" => {}
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    for (flag, path) in [("--tokens", &args.tokens), ("--out", &args.out), ("--model", &args.model)] {
        if path.as_os_str().is_empty() {
            return Err(format!("{flag} is missing").into());
        }
    }
    Ok(args)
}

/// One decimal id per line.
fn read_ids(path: &Path) -> Result<Vec<Token>, Box<dyn Error>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let ids: Vec<Token> = text.lines().map(|line| line.trim().parse().map(Token)).collect::<Result<_, _>>()?;
    if ids.is_empty() {
        return Err(format!("{}: no ids", path.display()).into());
    }
    Ok(ids)
}

/// Under another name first, so that a state file is complete or not there at all.
fn write_state(engine: &Engine, ids: Vec<Token>, out: &Path) -> Result<PrefillReport, Box<dyn Error>> {
    let partial = out.with_extension("partial");
    let result = engine.prefill_to_file(ids, &partial);
    let renamed = result.is_ok().then(|| std::fs::rename(&partial, out));
    if !matches!(renamed, Some(Ok(()))) {
        let _ = std::fs::remove_file(&partial);
    }
    renamed.transpose()?;
    Ok(result?)
}
