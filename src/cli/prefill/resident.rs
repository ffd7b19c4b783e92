//! `onebit-prefill --resident`: the model stays loaded, prompts come as lines on stdin.

use std::io::BufRead;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::engine::{Engine, EngineConfig, PrefillReport};
use crate::llama::Token;

use super::{Failure, PrefillArgs, context_for, engine_config, prefill, print, read_ids, reply};

/// One line of stdin. More fields are allowed.
#[derive(Deserialize)]
struct Request {
    tokens: PathBuf,
    out: PathBuf,
}

/// Answers requests until stdin ends.
pub(super) fn run(args: &PrefillArgs) -> Result<(), Failure> {
    let mut config = engine_config(args)?;
    config.n_ctx = args.ctx_size;
    // Before the first request: what is wrong with the model ends the process, with the exit code for it.
    let mut model = Resident { engine: Some(Engine::load(config.clone())?), config, may_grow: args.ctx_size.is_none() };
    for line in std::io::stdin().lock().split(b'\n') {
        let line = line.map_err(|err| Failure::new(1, format!("cannot read from standard input: {err}")))?;
        if !line.trim_ascii().is_empty() {
            print(&format!("{}\n", model.answer(&line)))?;
        }
    }
    if let Some(engine) = model.engine {
        engine.shutdown();
    }
    Ok(())
}

/// A model that stays loaded.
struct Resident {
    /// `None` after a load that failed; the next request tries again.
    engine: Option<Engine>,
    config: EngineConfig,
    /// Whether a prompt that does not fit gets a longer context.
    may_grow: bool,
}

impl Resident {
    /// Whatever is wrong with a request is its answer, under its id; null if it has none.
    fn answer(&mut self, line: &[u8]) -> Value {
        let request: Value = match serde_json::from_slice(line) {
            Ok(request) => request,
            Err(err) => return json!({"id": null, "error": format!("the request is not JSON: {err}")}),
        };
        let mut answer = json!({"id": request["id"]});
        let fields = match self.evaluate(request) {
            Ok(report) => {
                let mut fields = reply(&report);
                fields["n_cached"] = report.n_cached.into();
                fields
            }
            Err(failure) => json!({"error": failure.message}),
        };
        if let (Value::Object(answer), Value::Object(fields)) = (&mut answer, fields) {
            answer.extend(fields);
        }
        answer
    }

    fn evaluate(&mut self, request: Value) -> Result<PrefillReport, Failure> {
        let request: Request = serde_json::from_value(request)
            .map_err(|err| Failure::usage(format!("the request is no request: {err}")))?;
        let ids: Vec<Token> = read_ids(&request.tokens)?;
        let engine = self.engine_for(ids.len())?;
        // What the last prompt had in common with this one is still there.
        prefill(&request.out, |path| engine.prefill_more_to_file(ids, path))
    }

    /// An engine that takes so many ids: the one that is loaded, or one with twice its context or as much as it takes, so that
    /// a conversation which grows does not load the model for each turn.
    fn engine_for(&mut self, n_ids: usize) -> Result<&Engine, Failure> {
        let engine = match self.engine.take() {
            Some(engine) => engine,
            None => Engine::load(self.config.clone())?,
        };
        let info = engine.info();
        // Without leave to grow, the engine refuses too long a prompt with both numbers.
        if context_for(n_ids) <= info.n_ctx || !self.may_grow {
            return Ok(self.engine.insert(engine));
        }
        let n_ctx = context_for(n_ids).max(info.n_ctx.saturating_mul(2).min(info.n_ctx_train));
        // The two would not always fit side by side.
        engine.shutdown();
        drop(engine);
        let config = EngineConfig { n_ctx: Some(n_ctx), ..self.config.clone() };
        Ok(self.engine.insert(Engine::load(config)?))
    }
}
