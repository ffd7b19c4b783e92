//! Errors of the engine; each variant is something a caller can act on.

use crate::llama::Token;

/// Why a model did not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read at all.
    #[error("cannot read the model {path}: {reason}")]
    Unreadable {
        /// The path as given.
        path: String,
        /// The operating system's or our own word.
        reason: String,
    },
    /// llama.cpp refused the file.
    #[error("cannot load the model {path}: {reason}")]
    Model {
        /// The path as given.
        path: String,
        /// llama.cpp's own message.
        reason: String,
    },
    /// The context does not fit into memory, or llama.cpp refused its settings.
    #[error("cannot make a context of {n_ctx} tokens: {reason} (ask for fewer with --ctx-size)")]
    Context {
        /// Tokens asked for.
        n_ctx: u32,
        /// llama.cpp's own message, or the sizes that do not fit.
        reason: String,
    },
    /// The device asked for is not in this build or machine.
    #[error("{0}")]
    Device(String),
    /// The chat template cannot be used.
    #[error("cannot use the chat template: {0}")]
    Template(String),
    /// Loading was cancelled by the progress callback.
    #[error("loading was cancelled")]
    Cancelled,
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The prompt leaves no room for even one more token.
    #[error("the prompt has {n_prompt} tokens, but the context holds {n_ctx} and needs room for at least one more")]
    PromptTooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens the context holds.
        n_ctx: usize,
    },
    /// There is nothing to evaluate.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The model is an encoder.
    #[error("this model is an encoder, which embeds text and generates none")]
    NoDecoder,
    /// A token id outside the vocabulary.
    #[error("token id {token} is outside the vocabulary of {n_vocab} tokens")]
    InvalidToken {
        /// The id.
        token: Token,
        /// Size of the vocabulary.
        n_vocab: u32,
    },
    /// The text cannot be tokenized.
    #[error("cannot tokenize: {0}")]
    Tokenize(String),
    /// The chat template raised an exception, or the messages are not what it takes.
    #[error("the chat template refused the request: {0}")]
    Template(String),
    /// The model has no chat template and none was given.
    #[error(
        "this model has no chat template; start the server with --chat-template or --chat-template-file, or use completions"
    )]
    NoTemplate,
    /// An option has a value that cannot be used.
    #[error("`{option}` {reason}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The state file was refused; the sequence is empty again.
    #[error("{0}")]
    Restore(String),
    /// A state file could not be written.
    #[error("cannot write the state file {path}: {reason}")]
    Save {
        /// The path as given.
        path: String,
        /// What happened.
        reason: String,
    },
    /// llama.cpp could not evaluate; the sequence was cleared.
    #[error("evaluation failed: {0}")]
    Decode(String),
    /// The engine is shutting down, or its thread is gone.
    #[error("the engine has stopped")]
    Stopped,
}
