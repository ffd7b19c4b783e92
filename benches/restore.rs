//! What the checks of a state file cost beside llama.cpp's own load of the same file, in turn, in one run.
//!
//!     ONEBIT_SERVE_TEST_GGUF=model.gguf cargo bench --bench restore [-- PROMPT_TOKENS]
//!
//! `load` is `llama_state_seq_load_file`. `restore` is what a handoff does: open, read, check (structure and NaN scan),
//! load, compare positions. The file lies in /dev/shm where there is one, and is in the page cache either way.

use std::path::Path;
use std::time::{Duration, Instant};

use onebit::engine::{Engine, EngineConfig, Event, GenerateOptions};
use onebit::llama::{Context, ContextParams, KvType, Model, ModelParams, SeqId, Token};

const N_RUNS: usize = 31;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(path) = std::env::var_os("ONEBIT_SERVE_TEST_GGUF") else {
        println!("skipped: ONEBIT_SERVE_TEST_GGUF names no model");
        return Ok(());
    };
    let n_tokens = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(2047);
    let n_ctx = u32::try_from(n_tokens + 1)?.next_multiple_of(256);
    let folder = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" })?;
    let file = folder.path().join("prompt.state");

    let engine = Engine::load(EngineConfig { n_ctx: Some(n_ctx), state_probe: None, ..EngineConfig::new(&path) })?;
    let prompt: Vec<Token> = (0..n_tokens).map(|i| Token(1000 + (i * 37 % 5000) as i32)).collect();
    engine.prefill_to_file(prompt.as_slice(), &file)?;
    println!("{} tokens, {:.1} MB", n_tokens, std::fs::metadata(&file)?.len() as f64 / 1e6);

    let mut context = plain_context(Path::new(&path), n_ctx)?;
    let (mut loads, mut restores) = (Vec::new(), Vec::new());
    for _ in 0..N_RUNS {
        context.clear_seq(SeqId(0));
        let started = Instant::now();
        context.load_state_file(SeqId(0), &file, n_tokens)?;
        loads.push(started.elapsed());
        restores.push(restore(&engine, &file, &prompt)?);
    }
    let ratios = loads.iter().zip(&restores).map(|(load, restore)| restore.as_secs_f64() / load.as_secs_f64());
    println!("load    {:8.2} ms", milliseconds(&mut loads.clone()));
    println!("restore {:8.2} ms", milliseconds(&mut restores.clone()));
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    println!("restore / load {:.2} (median of {N_RUNS} pairs)", ratios[N_RUNS / 2]);
    Ok(())
}

fn plain_context(path: &Path, n_ctx: u32) -> Result<Context, onebit::llama::Error> {
    let params = ModelParams { devices: Vec::new(), n_gpu_layers: None, vocab_only: false };
    let model = Model::load(path, &params, &mut |_| true)?;
    let n_threads = onebit::llama::cpu_threads();
    let params = ContextParams {
        n_ctx,
        n_batch: 512,
        n_ubatch: 512,
        n_seq: 1,
        unified: true,
        n_threads,
        n_threads_batch: n_threads,
        flash_attention: None,
        type_k: KvType::F16,
        type_v: KvType::F16,
        embeddings: None,
    };
    Context::new(model.into(), &params)
}

fn restore(engine: &Engine, file: &Path, prompt: &[Token]) -> Result<Duration, Box<dyn std::error::Error>> {
    for event in engine.restore_and_generate(file, prompt, &GenerateOptions::greedy(0))? {
        if let Event::Prompt(report) = event? {
            return report.restore.ok_or_else(|| "nothing was restored".into());
        }
    }
    Err("no prompt event".into())
}

fn milliseconds(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}
