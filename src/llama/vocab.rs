//! Tokens and text.

use std::ffi::c_char;
use std::fmt;
use std::marker::PhantomData;

use super::error::check;
use super::{Error, Model};

/// A token id of one model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Token(pub i32);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A model's vocabulary. Reading it is thread-safe (llama.h, "Tokenization").
#[derive(Clone, Copy)]
pub struct Vocab<'a> {
    ptr: *const llama_sys::llama_vocab,
    model: PhantomData<&'a Model>,
}

// SAFETY: llama.cpp only reads a vocabulary after loading and documents its calls as thread-safe.
unsafe impl Send for Vocab<'_> {}
// SAFETY: as above.
unsafe impl Sync for Vocab<'_> {}

impl Vocab<'_> {
    /// # Safety
    ///
    /// `ptr` is the vocabulary of a model that lives for `'a`.
    pub(super) unsafe fn from_raw(ptr: *const llama_sys::llama_vocab) -> Self {
        Self { ptr, model: PhantomData }
    }

    pub(super) fn as_ptr(&self) -> *const llama_sys::llama_vocab {
        self.ptr
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> u32 {
        // SAFETY: the vocabulary is alive.
        u32::try_from(unsafe { llama_sys::llama_vocab_n_tokens(self.ptr) }).unwrap_or(0)
    }

    /// Kind, as llama.h numbers it (`LLAMA_VOCAB_TYPE_*`); 0 means that the model has no tokenizer.
    pub fn kind(&self) -> u32 {
        // SAFETY: the vocabulary is alive.
        unsafe { llama_sys::llama_vocab_type(self.ptr) }
    }

    /// Whether text can be turned into tokens. Without a tokenizer llama.cpp would abort the process.
    pub fn has_tokenizer(&self) -> bool {
        self.kind() != llama_sys::LLAMA_VOCAB_TYPE_NONE
    }

    /// Whether an id is in the vocabulary.
    pub fn contains(&self, token: Token) -> bool {
        u32::try_from(token.0).is_ok_and(|id| id < self.n_tokens())
    }

    /// Whether the model ends its turn with this token.
    pub fn is_end(&self, token: Token) -> bool {
        // SAFETY: the vocabulary is alive; llama.cpp looks the id up in a set.
        unsafe { llama_sys::llama_vocab_is_eog(self.ptr, token.0) }
    }

    /// Beginning-of-sequence token.
    pub fn bos(&self) -> Option<Token> {
        // SAFETY: the vocabulary is alive.
        optional(unsafe { llama_sys::llama_vocab_bos(self.ptr) })
    }

    /// End-of-sequence token.
    pub fn eos(&self) -> Option<Token> {
        // SAFETY: the vocabulary is alive.
        optional(unsafe { llama_sys::llama_vocab_eos(self.ptr) })
    }

    /// Tokens for filling in the middle: before the prefix, before the suffix, before the middle, between files, before a
    /// repository's name.
    pub fn fim(&self) -> [Option<Token>; 5] {
        // SAFETY: the vocabulary is alive.
        let ids = unsafe {
            [
                llama_sys::llama_vocab_fim_pre(self.ptr),
                llama_sys::llama_vocab_fim_suf(self.ptr),
                llama_sys::llama_vocab_fim_mid(self.ptr),
                llama_sys::llama_vocab_fim_sep(self.ptr),
                llama_sys::llama_vocab_fim_rep(self.ptr),
            ]
        };
        ids.map(optional)
    }

    /// Whether BOS belongs before a text.
    pub fn adds_bos(&self) -> bool {
        // SAFETY: the vocabulary is alive.
        unsafe { llama_sys::llama_vocab_get_add_bos(self.ptr) }
    }

    /// Splits text into tokens. `add_special` puts BOS and EOS where the model wants them; `parse_special` turns the
    /// spelling of a special token into that token.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>, Error> {
        if !self.has_tokenizer() {
            return Err(Error::Invalid("the model has no tokenizer: give token ids".to_owned()));
        }
        let len = i32::try_from(text.len()).map_err(|_| Error::Invalid("the text is longer than 2 GiB".to_owned()))?;
        // A token has at least one byte, but for BOS and EOS, and a space that some vocabularies put in front.
        let mut tokens = vec![Token(0); text.len() + 4];
        loop {
            let capacity = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
            let mut n = 0;
            // SAFETY: text and token buffer outlive the call and are as long as stated; Token is a transparent i32.
            check(|err| unsafe {
                llama_sys::onebit_tokenize(
                    self.ptr,
                    text.as_ptr().cast(),
                    len,
                    tokens.as_mut_ptr().cast(),
                    capacity,
                    add_special,
                    parse_special,
                    &raw mut n,
                    err,
                )
            })?;
            match usize::try_from(n) {
                Ok(n) => {
                    tokens.truncate(n);
                    return Ok(tokens);
                }
                Err(_) if n == i32::MIN => return Err(Error::Invalid("the text has too many tokens".to_owned())),
                Err(_) => tokens.resize(n.unsigned_abs() as usize, Token(0)),
            }
        }
    }

    /// Appends a token's bytes, which may be a part of a UTF-8 character. Special tokens have text only if `special`.
    pub fn append_bytes(&self, token: Token, special: bool, bytes: &mut Vec<u8>) {
        if !self.has_tokenizer() || !self.contains(token) {
            return;
        }
        let start = bytes.len();
        let mut room = 32;
        loop {
            bytes.resize(start + room, 0);
            let buffer: *mut c_char = bytes[start..].as_mut_ptr().cast();
            // SAFETY: the buffer has `room` bytes; the id was checked.
            let n = unsafe {
                llama_sys::llama_token_to_piece(
                    self.ptr,
                    token.0,
                    buffer,
                    i32::try_from(room).unwrap_or(i32::MAX),
                    0,
                    special,
                )
            };
            if let Ok(written) = usize::try_from(n) {
                bytes.truncate(start + written);
                return;
            }
            room = n.unsigned_abs() as usize;
        }
    }

    /// Text of tokens, special ones shown. Invalid UTF-8 is replaced.
    pub fn detokenize(&self, tokens: &[Token]) -> String {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        for &token in tokens {
            self.append_bytes(token, true, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn optional(token: i32) -> Option<Token> {
    (token != llama_sys::LLAMA_TOKEN_NULL).then_some(Token(token))
}
