//! Embeddings: a text's tokens in one pass, and one vector out of it.

use crate::llama::{Batch, Context, SeqId, Token};

use super::{EngineError, slot::decode_error};

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Not at all: a vector for each token.
    None,
    /// Their mean.
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    Last,
}

impl Pooling {
    /// Every kind with its name on the command line.
    pub const ALL: [(Pooling, &'static str); 4] =
        [(Pooling::None, "none"), (Pooling::Mean, "mean"), (Pooling::Cls, "cls"), (Pooling::Last, "last")];
}

impl std::str::FromStr for Pooling {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name).map(|(pooling, _)| *pooling);
        found.ok_or_else(|| format!("`{name}` is no kind of pooling; known are none, mean, cls and last"))
    }
}

/// What became of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// One vector; without pooling, one for each token. As the model gave them, not normalised.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of the text.
    pub n_tokens: usize,
}

/// Evaluates `tokens` in the sequence `seq`, which is empty before and after.
pub(super) fn embed(
    context: &mut Context,
    seq: SeqId,
    tokens: &[Token],
    is_pooled: bool,
) -> Result<Embedding, EngineError> {
    let mut batch = Batch::new();
    for (position, &token) in (0..).zip(tokens) {
        // A pooled vector is made of all tokens.
        batch.push(token, position, seq, true);
    }
    context.clear_seq(seq);
    context.set_embeddings(true);
    let vectors = context.decode(&mut batch, Vec::new()).and_then(|()| match is_pooled {
        true => Ok(vec![context.pooled_embedding(seq)?.to_vec()]),
        false => (0..tokens.len()).map(|index| Ok(context.token_embedding(index)?.to_vec())).collect(),
    });
    context.set_embeddings(false);
    context.clear_seq(seq);
    Ok(Embedding { vectors: vectors.map_err(decode_error)?, n_tokens: tokens.len() })
}
