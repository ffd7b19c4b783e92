//! `onebit run`: one answer on the terminal.

use std::io::{IsTerminal, Read, Write};

use futures_util::StreamExt;
use serde_json::json;

use crate::engine::{ChatRequest, Event, GenerateOptions, Report, Sampling};
use crate::hybrid::Hybrid;
use crate::llama::Token;
use crate::server::Backend;

use super::args::RunArgs;
use super::config::{self, Mode};
use super::loading::{self, Stop};
use super::{Failure, hrx};

const NAME: &str = "onebit run";

pub(super) fn main(args: &RunArgs) -> Result<(), Failure> {
    let mode = Mode::parse(&args.model.device);
    config::refuse_without_flash(&mode, &args.model)?;
    if let Err(reason) = hrx::prepare(args.model.hrx_libhsa.as_deref()) {
        tracing::warn!("HRX: {reason}");
    }
    let prompt = prompt_text(args)?;
    let mut engine_config = config::engine_config(&mode, &args.model, &args.hybrid, 1)?;
    engine_config.prefix_store = args.store.config(mode == Mode::Hybrid);
    let hybrid_config = match mode {
        Mode::Hybrid => Some(config::hybrid_config(&args.model, &args.hybrid)?),
        Mode::Local(_) => None,
    };
    let quiet = !std::io::stderr().is_terminal();
    let engine = loading::load(NAME, engine_config, &Stop::default(), quiet)?;
    let hybrid = hybrid_config.map(|config| Hybrid::new(engine.clone(), config)).transpose();
    let hybrid = hybrid.map_err(|err| Failure::new(1, err.to_string()))?;
    let backend = config::backend(&engine, hybrid.as_ref());

    let runtime = tokio::runtime::Runtime::new().map_err(|err| Failure::new(1, format!("cannot start: {err}")))?;
    let result = runtime.block_on(async {
        let result = tokio::select! {
            result = answer(&backend, args, &prompt) => result,
            code = signalled() => Err(Failure::new(code, "")),
        };
        if let Some(hybrid) = hybrid {
            hybrid.close().await;
        }
        result
    });
    engine.shutdown();
    result
}

/// The exit code of a signal that asked for an end: 128 and its number, as shells have it.
pub(super) async fn signalled() -> u8 {
    use tokio::signal::unix::{SignalKind, signal};
    let (interrupt, terminate) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = (interrupt, terminate) else { return std::future::pending().await };
    tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    }
}

fn prompt_text(args: &RunArgs) -> Result<String, Failure> {
    match args.prompt.as_deref() {
        Some("") => return Err(Failure::usage("the prompt is empty")),
        Some(prompt) if prompt != "-" => return Ok(prompt.to_owned()),
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::usage("no prompt: give one in quotes, or pipe it in"));
        }
        _ => {}
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|err| Failure::usage(format!("cannot read the prompt: {err}")))?;
    if text.trim().is_empty() {
        return Err(Failure::usage("the prompt is empty: nothing came from standard input"));
    }
    Ok(text)
}

async fn answer(backend: &Backend, args: &RunArgs, prompt: &str) -> Result<(), Failure> {
    let fail = |err: crate::engine::EngineError| Failure::new(1, err.to_string());
    let mut options = GenerateOptions {
        max_tokens: args.max_tokens,
        sampling: Sampling { temperature: args.temp, seed: args.seed, ..Sampling::default() },
        // Of the store: nothing else is there yet.
        reuse_prefix: true,
        ..GenerateOptions::default()
    };
    let tokens = prompt_tokens(backend, args, prompt, &mut options)?;
    let mut answers = backend.generate(tokens, options, 1).await.map_err(fail)?;
    let Some(mut events) = answers.pop() else { return Err(Failure::new(1, "no answer was begun")) };
    let mut stdout = std::io::stdout();
    while let Some(event) = events.next().await {
        match event.map_err(fail)? {
            Event::Progress(_) | Event::Prompt(_) => {}
            Event::Piece(piece) => {
                let written = stdout.write_all(piece.text.as_bytes()).and_then(|()| stdout.flush());
                match written {
                    Ok(()) => {}
                    // The reader has seen enough.
                    Err(err) if err.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                    Err(err) => return Err(Failure::new(1, format!("cannot write to standard output: {err}"))),
                }
            }
            Event::Done(report) => finish(&report),
        }
    }
    Ok(())
}

fn prompt_tokens(
    backend: &Backend,
    args: &RunArgs,
    prompt: &str,
    options: &mut GenerateOptions,
) -> Result<Vec<Token>, Failure> {
    let fail = |err: crate::engine::EngineError| Failure::new(1, err.to_string());
    if args.raw || !backend.info().has_chat_template {
        return backend.tokenize(prompt, true, true).map_err(fail);
    }
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": prompt}));
    let chat = backend.apply_template(&ChatRequest::new(messages.into())).map_err(fail)?;
    options.stop.extend(chat.stop);
    options.preserved_tokens = chat.preserved_tokens;
    backend.tokenize(&chat.prompt, true, true).map_err(fail)
}

/// A line end after the answer, and the speed for someone who watches.
fn finish(report: &Report) {
    println!();
    if std::io::stderr().is_terminal() {
        let seconds = report.generate.as_secs_f64();
        #[allow(clippy::cast_precision_loss)] // shown with one decimal
        let rate = if seconds > 0.0 { report.n_generated.saturating_sub(1) as f64 / seconds } else { 0.0 };
        eprintln!(
            "{NAME}: {} prompt tokens ({} from the cache), {} generated, {rate:.1} tokens/s",
            report.prompt.n_prompt, report.prompt.n_cached, report.n_generated
        );
    }
}
