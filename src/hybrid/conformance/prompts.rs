//! The prompts: lengths around the edges of batches, and texts that are easily got wrong.

use super::limits::N_GREEDY;
use crate::engine::Engine;
use crate::llama::Token;

/// 1 and 2: no history, and the least of it. Around 64 and 512: the edges of an accelerator's tile and of llama.cpp's
/// micro-batch. 7 and 2,000: no multiple of anything, and several batches.
const LENGTHS: [usize; 10] = [1, 2, 7, 63, 64, 65, 511, 512, 513, 2000];

/// Tokens of the phrase that is repeated, and how often. One token over and over would not do: its positions are so much
/// alike that their rounding errors add up instead of averaging out. Exact f32 arithmetic and this build's own kernels are
/// 4 nats apart after a hundred times the same token (SmolLM2-135M Q4_1), on other prompts 0.04 at most.
const N_PHRASE: usize = 5;
const N_REPEATED: usize = 20;
/// End tokens put into the middle of a text.
const N_END_TOKENS: usize = 4;

const UNICODE: &str = "Grüße aus Zürich! 世界，你好。Привет, мир. שלום עולם، مرحبا بالعالم. 안녕하세요 세계 – ∑∞≈√ 🦀🇨🇭👩‍👩‍👧 e\u{301} \
                       ¿Qué tal? ﬁn\t…\n\n";

const WORDS: [&str; 32] = [
    "river", "stone", "seven", "lamp", "north", "bread", "quiet", "engine", "violet", "paper", "salt", "window",
    "rope", "carries", "under", "slowly", "the", "a", "of", "before", "winter", "turned", "because", "every", "light",
    "was", "not", "far", "and", "old", "market", "ships",
];

pub(super) struct TestPrompt {
    pub name: String,
    pub tokens: Vec<Token>,
}

/// The prompts that this model can take, and why others are left out.
pub(super) fn prompts(engine: &Engine) -> (Vec<TestPrompt>, Vec<String>) {
    let longest = LENGTHS[LENGTHS.len() - 1];
    let (text, has_tokenizer) = match text(engine, longest) {
        Some(tokens) => (tokens, true),
        None => (arbitrary(engine, longest), false),
    };
    let mut all = Vec::new();
    let mut left_out = Vec::new();
    for n in LENGTHS {
        let name = if n == 1 { "1 token".to_owned() } else { format!("{n} tokens") };
        all.push(TestPrompt { name, tokens: text[..n].to_vec() });
    }
    let repeated = text[1..=N_PHRASE].iter().copied().cycle().take(N_PHRASE * N_REPEATED);
    all.push(TestPrompt { name: "repeated".to_owned(), tokens: text[..1].iter().copied().chain(repeated).collect() });
    match engine.tokenize(UNICODE, true, false) {
        Ok(tokens) if has_tokenizer && !tokens.is_empty() => {
            all.push(TestPrompt { name: "unicode".to_owned(), tokens });
        }
        _ => left_out.push("unicode: the model has no tokenizer".to_owned()),
    }
    match special(engine, &text) {
        Some(tokens) => all.push(TestPrompt { name: "special".to_owned(), tokens }),
        None => left_out.push("special: the model has no special tokens".to_owned()),
    }
    let n_ctx = engine.info().n_ctx as usize;
    let can_step_back = engine.info().can_step_back;
    all.retain(|prompt| {
        let n = prompt.tokens.len();
        let reason = match () {
            () if n + N_GREEDY >= n_ctx => {
                format!("with {N_GREEDY} more it does not fit the context of {n_ctx} tokens")
            }
            () if n == 1 && !can_step_back => {
                "this model cannot step back, so the provider would get no token".to_owned()
            }
            () => return true,
        };
        left_out.push(format!("{}: {reason}", prompt.name));
        false
    });
    (all, left_out)
}

/// `n` tokens of a text that does not repeat soon; `None` without a tokenizer.
fn text(engine: &Engine, n: usize) -> Option<Vec<Token>> {
    let mut numbers = Numbers(1);
    let mut text = String::from("Once");
    loop {
        for _ in 0..n {
            text.push(' ');
            text.push_str(WORDS[numbers.below(WORDS.len())]);
        }
        let tokens = engine.tokenize(&text, true, false).ok()?;
        if tokens.len() > n {
            return Some(tokens[..n].to_vec());
        }
    }
}

/// `n` ids, for a model without a tokenizer.
fn arbitrary(engine: &Engine, n: usize) -> Vec<Token> {
    let mut numbers = Numbers(1);
    let n_vocab = (engine.info().n_vocab as usize).max(1);
    (0..n).map(|_| Token(i32::try_from(numbers.below(n_vocab)).unwrap_or(0))).collect()
}

/// Text with BOS and end tokens in its middle, where some engines stop or start anew.
fn special(engine: &Engine, text: &[Token]) -> Option<Vec<Token>> {
    let ends = engine.end_tokens().iter().take(N_END_TOKENS).copied();
    let special: Vec<Token> = engine.bos().into_iter().chain(ends).collect();
    if special.is_empty() {
        return None;
    }
    let mut tokens = text[..9].to_vec();
    for token in special {
        tokens.push(token);
        tokens.extend_from_slice(&text[9..13]);
    }
    Some(tokens)
}

/// Reproducible numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap_or(0)
    }
}
