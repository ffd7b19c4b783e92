//! `POST /completion`.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use crate::{
    engine::{FinishReason, GenerateOptions, Piece, Report},
    llama::Token,
    server::{
        error::ApiError,
        extract::{ApiJson, Object},
        fields::Fields,
        generation::{self, Gathered, Step},
        openai::{self, Params, Timings},
        reply::{self, Writer},
        service,
        sse::{self, Frame},
        state::{AppState, Backend, blocking},
    },
};

/// The handler.
pub async fn create(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let backend = state.backend()?.clone();
    let fields = Fields::root(&body);
    let call = Call::read(&fields, &state)?;
    let prompts = openai::read_prompts(&fields, "prompt", backend.info().n_vocab)?;
    let for_blocking = backend.clone();
    let tokens = blocking(move || {
        let tokens = prompts.iter().map(|prompt| match prompt.is_empty() {
            true => Ok(Vec::new()),
            false => prompt.tokens(&for_blocking, true),
        });
        tokens.collect::<Result<Vec<_>, _>>().map_err(ApiError::from)
    });
    let tokens = tokens.await?;
    answer(state, backend, call, tokens).await
}

/// What a request says beside its prompt.
pub struct Call {
    pub params: Params,
    return_tokens: bool,
    /// Paths of the reply's fields that are wanted; all when there are none.
    response_fields: Vec<String>,
}

impl Call {
    /// Reads the fields.
    pub fn read(fields: &Fields, state: &AppState) -> Result<Self, ApiError> {
        let mut params = Params::read(fields, &state.config().defaults)?;
        openai::refuse_in_text(fields)?;
        params.read_schema(fields)?;
        let wanted = fields.array("response_fields")?.unwrap_or_default();
        let name = |(index, value): (usize, &Value)| {
            let name = value.as_str().map(str::to_owned);
            name.ok_or_else(|| ApiError::field(format!("response_fields[{index}]"), "expected a string"))
        };
        Ok(Self {
            params,
            return_tokens: fields.bool("return_tokens")?.unwrap_or(false),
            response_fields: wanted.iter().enumerate().map(name).collect::<Result<_, _>>()?,
        })
    }
}

/// Answers prompts in this API's form: an object, or an array of them when there are several.
pub async fn answer(
    state: AppState,
    backend: Backend,
    call: Call,
    prompts: Vec<Vec<Token>>,
) -> Result<Response, ApiError> {
    let Call { params, return_tokens, response_fields } = call;
    let (stream, n) = (params.stream, params.n);
    let keep_alive = params.keep_alive(state.config().keep_alive);
    let for_blocking = backend.clone();
    let options = blocking(move || params.into_options(&for_blocking)).await?;
    let shape = Shape { backend, model: state.model_id()?.to_string(), options, return_tokens, response_fields };
    if stream {
        let answers = generation::start_all(&state, prompts.clone(), &shape.options, n).await?;
        let progress = answers.iter().map(|_| Progress::default()).collect();
        let writer = NativeWriter { shape, prompts, n, progress };
        return Ok(reply::stream(writer, answers, keep_alive));
    }
    let place = generation::admit(&state)?;
    let mut replies = Vec::new();
    for prompt in prompts {
        for steps in generation::start_one(&place, &state, prompt.clone(), shape.options.clone(), n).await? {
            let Gathered { piece, report } = generation::gather(steps).await?;
            replies.push(shape.whole(replies.len(), &prompt, &piece, &report, piece.text.contains('\n')));
        }
    }
    Ok(match replies.len() {
        1 => ApiJson(replies.remove(0)).into_response(),
        _ => ApiJson(replies).into_response(),
    })
}

/// What all replies to one request have in common.
struct Shape {
    backend: Backend,
    model: String,
    options: GenerateOptions,
    return_tokens: bool,
    response_fields: Vec<String>,
}

impl Shape {
    /// The final object.
    fn whole(&self, index: usize, prompt: &[Token], piece: &Piece, report: &Report, has_new_line: bool) -> Value {
        let (stop_type, stopping_word) = match &report.finish {
            FinishReason::EndOfText => ("eos", ""),
            FinishReason::StopString(word) => ("word", word.as_str()),
            FinishReason::MaxTokens | FinishReason::ContextFull => ("limit", ""),
        };
        let mut reply = json!({
            "index": index,
            "content": piece.text,
            "tokens": self.tokens(piece),
            "id_slot": self.options.slot.unwrap_or(0),
            "stop": true,
            "model": self.model,
            "tokens_predicted": report.n_generated,
            "tokens_evaluated": report.prompt.n_prompt,
            "generation_settings": service::settings(&self.options),
            "prompt": self.backend.detokenize(prompt),
            "has_new_line": has_new_line,
            "truncated": report.finish == FinishReason::ContextFull,
            "stop_type": stop_type,
            "stopping_word": stopping_word,
            "tokens_cached": report.prompt.n_prompt + report.n_generated.saturating_sub(1),
            "timings": Timings::new(report),
        });
        self.add_probabilities(&mut reply, piece);
        self.only_wanted(reply)
    }

    /// Ids only where they were asked for.
    fn tokens(&self, piece: &Piece) -> Vec<i32> {
        if self.return_tokens { piece.tokens.iter().map(|token| token.0).collect() } else { Vec::new() }
    }

    fn add_probabilities(&self, reply: &mut Value, piece: &Piece) {
        if self.options.top_logprobs.is_some() {
            reply["completion_probabilities"] = json!(openai::logprob_entries(&self.backend, &piece.logprobs));
        }
    }

    /// `response_fields`: `a/b` is the field `b` of the object `a`, and stands in the reply under its whole path.
    fn only_wanted(&self, reply: Value) -> Value {
        if self.response_fields.is_empty() {
            return reply;
        }
        let found = self.response_fields.iter().filter_map(|path| {
            let value = path.split('/').try_fold(&reply, |value, key| value.get(key))?;
            Some((path.clone(), value.clone()))
        });
        Value::Object(found.collect::<Map<_, _>>())
    }
}

#[derive(Default)]
struct Progress {
    n_predicted: usize,
    has_new_line: bool,
}

struct NativeWriter {
    shape: Shape,
    prompts: Vec<Vec<Token>>,
    n: usize,
    progress: Vec<Progress>,
}

impl NativeWriter {
    fn prompt(&self, index: usize) -> &[Token] {
        &self.prompts[index / self.n.max(1)]
    }
}

/// Without `[DONE]`, which this API has not.
impl Writer<Step> for NativeWriter {
    fn step(&mut self, index: usize, step: Step) -> Vec<Frame> {
        let reply = match step {
            Step::Progress(progress) => json!({
                "index": index,
                "content": "",
                "tokens": [],
                "stop": false,
                "id_slot": self.shape.options.slot.unwrap_or(0),
                "tokens_predicted": 0,
                "tokens_evaluated": self.prompt(index).len(),
                "prompt_progress": openai::Progress::from(progress),
            }),
            Step::Piece(piece) => {
                let progress = &mut self.progress[index];
                progress.n_predicted += piece.tokens.len();
                progress.has_new_line |= piece.text.contains('\n');
                let mut reply = json!({
                    "index": index,
                    "content": piece.text,
                    // Every id in exactly one chunk, asked for or not: clients of streams rely on them.
                    "tokens": piece.tokens.iter().map(|token| token.0).collect::<Vec<_>>(),
                    "stop": false,
                    "id_slot": self.shape.options.slot.unwrap_or(0),
                    "tokens_predicted": progress.n_predicted,
                    "tokens_evaluated": self.prompt(index).len(),
                });
                self.shape.add_probabilities(&mut reply, &piece);
                reply
            }
            Step::Done(report) => {
                let has_new_line = self.progress[index].has_new_line;
                self.shape.whole(index, self.prompt(index), &Piece::default(), &report, has_new_line)
            }
        };
        vec![Frame::data(sse::json(&reply))]
    }
}
