//! Tiny models on disk, each written once.

use std::path::PathBuf;

use onebit::llama::Token;
use onebit::testing::TinyModel;

/// The model that most tests use: random weights, one token for each byte, 2,048 tokens of context.
pub fn tiny() -> PathBuf {
    write("tiny.gguf", &TinyModel::llama())
}

/// The same shape with other weights: its states fit, and are wrong.
pub fn other_weights() -> PathBuf {
    write("tiny-other.gguf", &TinyModel::with_seed(2))
}

/// The same weights with room for generations that do not end by themselves while a test looks.
pub fn tiny_with_long_context() -> PathBuf {
    write("tiny-long.gguf", &TinyModel { n_ctx: LONG_CONTEXT, ..TinyModel::llama() })
}

/// Tokens that [`tiny_with_long_context`] was "trained" for.
pub const LONG_CONTEXT: u32 = 1 << 17;

/// A model of three layers where the tiny one has two; it has no vocabulary.
pub fn other_shape() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-llama.gguf")
}

/// The tiny models' token for a byte.
pub fn byte_token(byte: u8) -> Token {
    Token(i32::from(byte) + 3)
}

/// The tiny models' tokens for a text: BOS, then one for each byte; a space counts as the three bytes of U+2581, which
/// this kind of vocabulary writes in its place.
pub fn tokens(text: &str) -> Vec<Token> {
    std::iter::once(Token(1)).chain(text.replace(' ', "\u{2581}").bytes().map(byte_token)).collect()
}

/// The tiny models' tokens that are not one visible character (nor the space). Without them, answers are text that can
/// be compared, where random bytes would mostly be replacement characters.
pub fn invisible_tokens() -> impl Iterator<Item = Token> {
    let special = (0..3).map(Token);
    special.chain((0..=u8::MAX).filter(|byte| !(0x20..0x7f).contains(byte)).map(byte_token))
}

/// Several test binaries may do this at once, hence the renaming.
pub fn write(name: &str, model: &TinyModel) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let partial = folder.path().join(name);
    model.write(&partial).unwrap();
    std::fs::rename(&partial, &path).unwrap();
    path
}
