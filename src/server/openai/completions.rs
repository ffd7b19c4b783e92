//! `POST /v1/completions`.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    later,
    logprobs::text_logprobs,
    params::Params,
    prompt::{self, Prompt},
    wire::{Body, Head, Totals, finish_reason},
};
use crate::{
    engine::{GenerateOptions, Report},
    llama::Token,
    server::{
        error::ApiError,
        extract::{ApiJson, Object},
        fields::Fields,
        generation::{self, Gathered, Step},
        reply::{self, Writer},
        sse::{self, Frame},
        state::{AppState, Backend, blocking},
    },
};

/// The handler.
pub async fn create(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let backend = state.backend()?.clone();
    let request = Request::read(&Fields::root(&body), &state, &backend)?;
    let Params { stream, include_usage, n, .. } = request.params;
    let keep_alive = request.params.keep_alive(state.config().keep_alive);
    let has_logprobs = request.params.top_logprobs().is_some();
    let for_blocking = backend.clone();
    let (prompts, options, echoes) = blocking(move || request.prepare(&for_blocking)).await?;
    let head = Head::new(&state, "cmpl-", "text_completion")?;
    if stream {
        let answers = generation::start_all(&state, prompts, &options, n).await?;
        let ended = answers.iter().map(|_| None).collect();
        let writer = TextWriter { head, backend, include_usage, has_logprobs, n, echoes, ended, offsets: Vec::new() };
        return Ok(reply::stream(writer, answers, keep_alive));
    }
    let place = generation::admit(&state)?;
    let (mut choices, mut reports) = (Vec::new(), Vec::new());
    for (prompt, echo) in prompts.into_iter().zip(&echoes) {
        for steps in generation::start_one(&place, &state, prompt, options.clone(), n).await? {
            let Gathered { piece, report } = generation::gather(steps).await?;
            let logprobs = has_logprobs.then(|| text_logprobs(&backend, &piece.logprobs, echo.chars().count()));
            let finish_reason = Some(finish_reason(&report.finish));
            choices.push(Choice {
                index: choices.len(),
                text: format!("{echo}{}", piece.text),
                logprobs,
                finish_reason,
            });
            reports.push(report);
        }
    }
    Ok(ApiJson(Body::last(&head, choices, totals(&reports, n))).into_response())
}

/// Tokens of each prompt, the options, and the text that comes before each answer.
type Prepared = (Vec<Vec<Token>>, GenerateOptions, Vec<String>);

/// A request, checked.
struct Request {
    params: Params,
    prompts: Vec<Prompt>,
    /// Text behind the place that is to be filled.
    suffix: Option<String>,
    echo: bool,
}

impl Request {
    fn read(fields: &Fields, state: &AppState, backend: &Backend) -> Result<Self, ApiError> {
        let mut params = Params::read(fields, &state.config().defaults)?;
        later::refuse_in_text(fields)?;
        match fields.get("logprobs") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => params.set_top_logprobs("logprobs", 1)?,
            Some(_) => params.set_top_logprobs("logprobs", fields.integer("logprobs")?.unwrap_or(0))?,
        }
        if let Some(best_of) = fields.integer("best_of")?
            && usize::try_from(best_of).is_ok_and(|best_of| best_of > params.n)
        {
            return Err(ApiError::field("best_of", "more answers than `n` are not supported"));
        }
        let echo = fields.bool("echo")?.unwrap_or(false);
        if echo && params.top_logprobs().is_some() {
            return Err(ApiError::field("echo", "the prompt's own log-probabilities are not supported"));
        }
        params.read_schema(fields)?;
        Ok(Self {
            prompts: prompt::read_all(fields, "prompt", backend.info().n_vocab)?,
            suffix: fields.string("suffix")?.filter(|text| !text.is_empty()).map(str::to_owned),
            echo,
            params,
        })
    }

    /// Tokenizes: not for an async thread.
    fn prepare(self, backend: &Backend) -> Result<Prepared, ApiError> {
        let mut prompts = Vec::new();
        let mut echoes = Vec::new();
        for prompt in &self.prompts {
            echoes.push(if self.echo { prompt.to_text(backend) } else { String::new() });
            prompts.push(match &self.suffix {
                None if prompt.is_empty() => Vec::new(),
                None => prompt.tokens(backend, true)?,
                Some(suffix) => fill_in_the_middle(backend, prompt, suffix)?,
            });
        }
        Ok((prompts, self.params.into_options(backend)?, echoes))
    }
}

/// Prefix, suffix, and the place between them, as the model was trained on.
fn fill_in_the_middle(backend: &Backend, prompt: &Prompt, suffix: &str) -> Result<Vec<Token>, ApiError> {
    let Some(fim) = backend.fim_tokens() else {
        return Err(ApiError::field("suffix", "this model has no tokens for filling in the middle; leave it out"));
    };
    let mut tokens: Vec<Token> = backend.bos_if_wanted().into_iter().collect();
    tokens.push(fim.prefix);
    tokens.extend(prompt.tokens(backend, false)?);
    tokens.push(fim.suffix);
    tokens.extend(backend.tokenize(suffix, false, true)?);
    tokens.push(fim.middle);
    Ok(tokens)
}

fn totals(reports: &[Report], n: usize) -> Totals {
    let prompts: Vec<Vec<&Report>> = reports.chunks(n.max(1)).map(|answers| answers.iter().collect()).collect();
    Totals::of_prompts(&prompts)
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

struct TextWriter {
    head: Head,
    backend: Backend,
    include_usage: bool,
    has_logprobs: bool,
    n: usize,
    echoes: Vec<String>,
    ended: Vec<Option<Report>>,
    /// Characters sent of each answer.
    offsets: Vec<usize>,
}

impl TextWriter {
    fn chunk(&self, index: usize, text: String, logprobs: Option<Value>) -> Frame {
        Frame::data(sse::json(&Body::chunk(&self.head, Choice { index, text, logprobs, finish_reason: None })))
    }

    fn totals(&self) -> Totals {
        let reports: Vec<Report> = self.ended.iter().flatten().cloned().collect();
        totals(&reports, self.n)
    }
}

impl Writer<Step> for TextWriter {
    fn opening(&mut self) -> Vec<Frame> {
        let echo = |index: usize| &self.echoes[index / self.n.max(1)];
        self.offsets = (0..self.ended.len()).map(|index| echo(index).chars().count()).collect();
        let echoed = (0..self.ended.len()).filter(|&index| !echo(index).is_empty());
        echoed.map(|index| self.chunk(index, echo(index).clone(), None)).collect()
    }

    /// The last finish chunk carries the usage even when not asked (llama-server's clients read it there); when asked, it
    /// moves to a chunk without choices, so that it is never counted twice.
    fn step(&mut self, index: usize, step: Step) -> Vec<Frame> {
        match step {
            Step::Progress(progress) => {
                let choice = Choice { index, text: String::new(), logprobs: None, finish_reason: None };
                vec![Frame::data(sse::json(&Body::progress(&self.head, choice, progress)))]
            }
            Step::Piece(piece) if piece.text.is_empty() && piece.logprobs.is_empty() => Vec::new(),
            Step::Piece(piece) => {
                let offset = self.offsets[index];
                self.offsets[index] += piece.text.chars().count();
                let logprobs = self.has_logprobs.then(|| text_logprobs(&self.backend, &piece.logprobs, offset));
                vec![self.chunk(index, piece.text, logprobs)]
            }
            Step::Done(report) => {
                let finish_reason = Some(finish_reason(&report.finish));
                self.ended[index] = Some(report);
                let choice = Choice { index, text: String::new(), logprobs: None, finish_reason };
                let is_last = self.ended.iter().all(Option::is_some);
                let body = match is_last && !self.include_usage {
                    true => Body::last(&self.head, vec![choice], self.totals()),
                    false => Body::chunk(&self.head, choice),
                };
                vec![Frame::data(sse::json(&body))]
            }
        }
    }

    fn closing(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.include_usage {
            let usage = Body::<Choice>::last(&self.head, Vec::new(), self.totals());
            frames.push(Frame::data(sse::json(&usage)));
        }
        frames.push(reply::done());
        frames
    }
}
