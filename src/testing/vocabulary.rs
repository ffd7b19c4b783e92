use crate::llama::Error;
use crate::llama::gguf::Writer;

/// Three special tokens and the bytes.
pub(super) const N_VOCAB: usize = 259;

/// `<unk>`, `<s>`, `</s>`, then `<0x00>` to `<0xFF>`: token id = byte + 3.
pub(super) fn write(gguf: &mut Writer) -> Result<(), Error> {
    const NORMAL_UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const BYTE: i32 = 6;
    let mut texts = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    texts.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let mut kinds = vec![NORMAL_UNKNOWN, CONTROL, CONTROL];
    kinds.resize(N_VOCAB, BYTE);
    gguf.text("tokenizer.ggml.model", "llama")?
        .texts("tokenizer.ggml.tokens", &texts)?
        .floats("tokenizer.ggml.scores", &vec![0.0; N_VOCAB])?
        .integers("tokenizer.ggml.token_type", &kinds)?
        .number("tokenizer.ggml.bos_token_id", 1)?
        .number("tokenizer.ggml.eos_token_id", 2)?
        .number("tokenizer.ggml.unknown_token_id", 0)?
        .flag("tokenizer.ggml.add_bos_token", true)?
        .flag("tokenizer.ggml.add_space_prefix", false)?;
    Ok(())
}

/// The tokens of the bytes 1, 2 and 3 begin prefix, suffix and middle.
pub(super) fn write_fim(gguf: &mut Writer) -> Result<(), Error> {
    gguf.number("tokenizer.ggml.fim_pre_token_id", 4)?
        .number("tokenizer.ggml.fim_suf_token_id", 5)?
        .number("tokenizer.ggml.fim_mid_token_id", 6)?;
    Ok(())
}
