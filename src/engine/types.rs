//! What goes into a generation and what comes out of it.

use std::time::Duration;

use crate::llama::Token;

/// A prompt: text to tokenize (special tokens recognised, BOS added when the model wants one), or ids as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<Token>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Prompt::Text(text)
    }
}

impl From<Vec<Token>> for Prompt {
    fn from(tokens: Vec<Token>) -> Self {
        Prompt::Tokens(tokens)
    }
}

impl From<&[Token]> for Prompt {
    fn from(tokens: &[Token]) -> Self {
        Prompt::Tokens(tokens.to_vec())
    }
}

/// How the next token is chosen from the logits. The sampler chain runs in the order of llama.cpp's own tools:
/// penalties, top_k, typical_p, top_p, min_p, temperature, then a draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 picks the most likely token always (greedy).
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keep the most likely up to this total probability (nucleus sampling, arXiv:1904.09751); 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the best; 0 keeps all.
    pub min_p: f32,
    /// Locally typical sampling (arXiv:2202.00666); 1 keeps all.
    pub typical_p: f32,
    /// Divides the logit of tokens seen in the last `repeat_last_n`; 1 is off.
    pub repeat_penalty: f32,
    /// How many tokens back the penalties look; 0 is off.
    pub repeat_last_n: u32,
    /// Subtracted once for a token already seen; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was seen; 0 is off.
    pub frequency_penalty: f32,
    /// Seed of the draw; `None` draws a seed, which the final report tells.
    pub seed: Option<u32>,
    /// Added to the logits of these tokens; negative infinity forbids one.
    pub logit_bias: Vec<(Token, f32)>,
    /// A constraint on the text.
    pub grammar: Option<Grammar>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
            logit_bias: Vec::new(),
            grammar: None,
        }
    }
}

impl Sampling {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}

/// A GBNF grammar that the answer must follow.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Grammar {
    /// The rules; the start symbol is `root`.
    pub gbnf: String,
    /// When `Some`, the text is free until one of these triggers appears (tool calls in the middle of an answer).
    pub triggers: Option<GrammarTriggers>,
    /// Text that the answer is taken to begin with: the part of the assistant's turn that the template already wrote.
    pub prefill: String,
}

/// What switches a lazy grammar on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct GrammarTriggers {
    /// Words; the grammar sees the text from the word on.
    pub words: Vec<String>,
    /// Regular expressions matched from the start of the output; the grammar sees the text from the first group on. Costs a
    /// match over the whole output for each token: a word is better where it will do.
    pub patterns: Vec<String>,
    /// Tokens that start the constrained part.
    pub tokens: Vec<Token>,
}

/// Options of one generation.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct GenerateOptions {
    /// Stop after this many tokens; `None` goes on to an end token or the end of the context.
    /// 0 evaluates the prompt and generates nothing.
    pub max_tokens: Option<u32>,
    /// Stop before the first of these that appears in the text; it is not part of the output.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Never choose an end token.
    pub ignore_eos: bool,
    /// Tokens shown as text though they are special (tool-call markers a parser wants to see).
    pub preserved_tokens: Vec<Token>,
    /// `Some(k)`: each token comes with its log-probability and the `k` most likely ones. From the model's logits alone,
    /// before the sampler chain.
    pub top_logprobs: Option<usize>,
    /// Continue from the longest beginning of the prompt that a sequence still holds from an earlier job, instead of
    /// evaluating all of it.
    pub reuse_prefix: bool,
    /// With `reuse_prefix`: also from what a state file brought. Without it such tokens serve the job that they came with and
    /// no other, so that what is evaluated here does not depend on whether another program was right.
    pub reuse_restored: bool,
    /// Work in this slot (`0..n_seq`), and wait for it; `None` takes the one that holds most of the prompt.
    pub slot: Option<u32>,
    /// Tell after each batch how much of the prompt is evaluated ([`Event::Progress`]).
    pub report_progress: bool,
    /// Send the first text at once and all other text as one piece at the end: waking a reader for each token costs a machine
    /// of few cores a percent or two of its decode speed.
    pub two_pieces: bool,
}

impl GenerateOptions {
    /// Greedy, at most `max_tokens` tokens.
    pub fn greedy(max_tokens: u32) -> Self {
        Self { max_tokens: Some(max_tokens), sampling: Sampling::greedy(), ..Self::default() }
    }
}

/// One step of a generation, in this order: `Progress` any number of times and only when asked for, `Prompt` once, `Piece` any
/// number of times, `Done` once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// More of the prompt is in the KV cache. The first one comes before anything is evaluated.
    Progress(PromptProgress),
    /// The whole prompt is in the KV cache and its last token's logits are known.
    Prompt(PromptReport),
    /// More text.
    Piece(Piece),
    /// The end.
    Done(Report),
}

/// How far the evaluation of a prompt is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptProgress {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Of these, taken from the cache or a state file.
    pub n_cached: usize,
    /// Of these, in the KV cache by now; those that were taken from there included.
    pub n_processed: usize,
    /// Since the evaluation began.
    pub elapsed: Duration,
}

/// How the prompt got into the KV cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptReport {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Of these, taken from the cache or a state file.
    pub n_cached: usize,
    /// Time to read and check the file and to load it, when a state file was restored.
    pub restore: Option<Duration>,
    /// Time to evaluate the other tokens.
    pub evaluate: Duration,
    /// The token that this engine's logits rank first after the prompt.
    pub argmax: Token,
}

/// Text that is complete: it never ends inside a UTF-8 character, and no part of it can still become a stop string.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Piece {
    /// The text; may be empty when the tokens have no text of their own.
    pub text: String,
    /// The tokens whose last byte lies in this piece, or that add no text.
    pub tokens: Vec<Token>,
    /// Of these tokens, when [`GenerateOptions::top_logprobs`] asked for it; tokens that a stop string swallowed are left out.
    pub logprobs: Vec<TokenLogprob>,
}

/// How likely a token was, by the model's logits.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token that was chosen.
    pub token: Token,
    /// Natural logarithm of its probability; `f32::MIN` where that is 0.
    pub logprob: f32,
    /// The most likely tokens, best first.
    pub top: Vec<(Token, f32)>,
}

/// Why a generation ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose an end-of-generation token.
    EndOfText,
    /// This stop string appeared.
    StopString(String),
    /// `max_tokens` reached.
    MaxTokens,
    /// The context is full.
    ContextFull,
}

/// The final event of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Why it ended.
    pub finish: FinishReason,
    /// How the prompt was taken in.
    pub prompt: PromptReport,
    /// Tokens generated, an end token included.
    pub n_generated: usize,
    /// Time from the prompt's end to the last token.
    pub generate: Duration,
    /// Time that an external prefill provider took, for a handoff.
    pub external_prefill: Option<Duration>,
    /// The seed that was used.
    pub seed: u32,
}

/// What the decode thread has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeCounts {
    /// Batches decoded.
    pub n_decode: u64,
    /// Sequences in all of these batches.
    pub n_sequences: u64,
}

/// Outcome of [`Engine::prefill_to_file`](super::Engine::prefill_to_file).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillReport {
    /// Tokens in the file.
    pub n_tokens: usize,
    /// Of these, how many were held from an earlier job and not evaluated again.
    pub n_cached: usize,
    /// The token that the logits rank first after the last one.
    pub argmax: Token,
    /// Time to evaluate the prompt.
    pub evaluate: Duration,
    /// Time to write the file.
    pub save: Duration,
    /// Size of the file in bytes.
    pub n_bytes: u64,
}

/// The tokens of models that fill in the middle of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FimTokens {
    pub prefix: Token,
    pub suffix: Token,
    pub middle: Token,
    /// Between files, and before the name of the repository, where the vocabulary has them.
    pub separator: Option<Token>,
    pub repository: Option<Token>,
}

/// What [`Engine::embed`](super::Engine::embed) gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingKind {
    /// One vector for a text.
    Pooled,
    /// One for each of its tokens.
    Tokens,
}

/// Facts about a loaded model and its context.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// Path it was loaded from.
    pub path: std::path::PathBuf,
    /// llama.cpp's one-line description, such as `llama ?B Q4_1`.
    pub description: String,
    /// `general.architecture`.
    pub architecture: String,
    /// File type, such as `Q4_K - Medium`.
    pub file_type: String,
    /// Tokens that one sequence can hold.
    pub n_ctx: u32,
    /// Sequences that are decoded at once.
    pub n_slots: u32,
    /// Whether the model generates text; encoders only embed it.
    pub generates: bool,
    /// What embeddings it computes, when it was loaded to.
    pub embeddings: Option<EmbeddingKind>,
    /// Tokens in one pass, which a text to embed has to fit.
    pub n_ubatch: u32,
    /// Tokens the model was trained for.
    pub n_ctx_train: u32,
    /// Size of the vocabulary.
    pub n_vocab: u32,
    /// Kind of vocabulary, as llama.cpp numbers it (0 none, 1 SPM, 2 BPE, 3 WPM, 4 UGM, 5 RWKV).
    pub vocab_type: u32,
    /// Width of an embedding.
    pub n_embd: u32,
    /// Number of parameters.
    pub n_params: u64,
    /// Size of all tensors in bytes.
    pub n_bytes: u64,
    /// Window of sliding-window attention in tokens; 0 when the model has none.
    pub n_swa: u32,
    /// Whether the last position can be removed from the memory (not so for recurrent and hybrid models, whose state
    /// is one running summary). Decides how many tokens a prefill provider gets.
    pub can_step_back: bool,
    /// Whether the model brings a chat template of its own (or one was given).
    pub has_chat_template: bool,
    /// Whether BOS is put before a tokenized text.
    pub adds_bos: bool,
    /// Name of the device that decodes, such as `CPU` or `HRX0`.
    pub device: String,
    /// Bytes of a sequence-state file for a full context, measured on the model itself.
    pub state_bytes_full: u64,
    /// When the engine was loaded, in seconds since the epoch.
    pub loaded_at: u64,
}
