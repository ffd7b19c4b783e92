//! `POST /infill`: the text between a prefix and a suffix.

use axum::{extract::State, response::Response};

use super::completion::{Call, answer};
use crate::{
    engine::FimTokens,
    llama::Token,
    server::{
        error::ApiError,
        extract::{ApiJson, Object},
        fields::Fields,
        openai::{self, Prompt},
        state::{AppState, Backend, blocking},
    },
};

/// Tokens of prefix and suffix together: as many as llama-server keeps, which evaluates them as one batch.
const N_AROUND: usize = 2048;

/// The handler.
pub async fn create(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let backend = state.backend()?.clone();
    let Some(fim) = backend.fim_tokens() else {
        return Err(ApiError::not_supported(
            "this model has no tokens for filling in the middle (prefix, suffix, middle), which /infill needs",
        ));
    };
    let fields = Fields::root(&body);
    let call = Call::read(&fields, &state)?;
    let request = Infill::read(&fields, backend.info().n_vocab)?;
    let n_predict = call.params.max_tokens().unwrap_or(0) as usize;
    let for_blocking = backend.clone();
    let tokens = blocking(move || request.tokens(&for_blocking, fim, n_predict)).await?;
    answer(state, backend, call, vec![tokens]).await
}

/// A request, checked.
struct Infill {
    prefix: Prompt,
    suffix: Prompt,
    /// Goes on behind the place that is filled.
    prompt: String,
    /// Other files: name and text.
    extra: Vec<(String, String)>,
}

impl Infill {
    fn read(fields: &Fields, n_vocab: u32) -> Result<Self, ApiError> {
        let required = |name: &str| {
            let prompt = openai::read_prompt(fields, name, n_vocab)?;
            prompt.ok_or_else(|| ApiError::field(name, "missing; expected a string or an array of token ids"))
        };
        let mut extra = Vec::new();
        for (index, value) in fields.array("input_extra")?.unwrap_or_default().iter().enumerate() {
            let entry = Fields::at(format!("input_extra[{index}]"), value)?;
            let text = entry.required_string("text")?;
            extra.push((entry.string("filename")?.unwrap_or("tmp").to_owned(), text.to_owned()));
        }
        Ok(Self {
            prefix: required("input_prefix")?,
            suffix: required("input_suffix")?,
            prompt: fields.string("prompt")?.unwrap_or_default().to_owned(),
            extra,
        })
    }

    /// The layout of llama-server: other files, then prefix, suffix, middle. Of a long prefix the end is kept, of a long
    /// suffix the beginning, of many files the last.
    fn tokens(&self, backend: &Backend, fim: FimTokens, n_predict: usize) -> Result<Vec<Token>, ApiError> {
        let n_ctx = backend.info().n_ctx as usize;
        let n_around = N_AROUND.min(n_ctx / 2);
        let mut prefix = self.prefix.tokens(backend, false)?;
        let mut suffix = self.suffix.tokens(backend, false)?;
        let prompt = backend.tokenize(&self.prompt, false, true)?;
        let n_prefix = prefix.len().min((3 * (n_around / 4)).saturating_sub(3));
        prefix.drain(..prefix.len() - n_prefix);
        suffix.truncate((n_around / 4).saturating_sub(2 + prompt.len()));

        let mut files = self.files(backend, fim)?;
        let n_files = n_ctx.saturating_sub(n_around).saturating_sub(2 * n_predict).min(files.len());
        files.drain(..files.len() - n_files);

        let mut tokens: Vec<Token> = backend.bos_if_wanted().into_iter().collect();
        tokens.extend(files);
        tokens.push(fim.prefix);
        tokens.extend(prefix);
        tokens.extend(prompt);
        tokens.push(fim.suffix);
        tokens.extend(suffix);
        tokens.push(fim.middle);
        Ok(tokens)
    }

    fn files(&self, backend: &Backend, fim: FimTokens) -> Result<Vec<Token>, ApiError> {
        let mut tokens = Vec::new();
        if let Some(repository) = fim.repository {
            tokens.push(repository);
            tokens.extend(backend.tokenize("myproject\n", false, false)?);
        }
        for (name, text) in &self.extra {
            match fim.separator {
                Some(separator) => {
                    tokens.push(separator);
                    tokens.extend(backend.tokenize(&format!("{name}\n"), false, false)?);
                }
                None => tokens.extend(backend.tokenize("\n\n--- snippet ---\n\n", false, false)?),
            }
            tokens.extend(backend.tokenize(text, false, false)?);
        }
        if let Some(separator) = fim.separator {
            tokens.push(separator);
            tokens.extend(backend.tokenize("filename\n", false, false)?);
        }
        Ok(tokens)
    }
}
