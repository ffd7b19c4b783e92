//! The sampler chain: from logits to the next token.

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::check;
use super::strings::c_string;
use super::trigger::Watch;
use super::{Error, Model, Token};

pub use super::trigger::TriggerSpec;

/// How to choose tokens. Field meanings are those of `engine::Sampling`.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct SamplerSpec {
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub typical_p: f32,
    pub repeat_penalty: f32,
    pub repeat_last_n: u32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub seed: u32,
    pub logit_bias: Vec<(Token, f32)>,
    pub grammar: Option<GrammarSpec>,
}

/// A grammar and when it applies.
#[derive(Clone, Debug, Default)]
pub struct GrammarSpec {
    /// GBNF; the start symbol is `root`.
    pub gbnf: String,
    /// `Some`: free text until a pattern matches or one of the tokens comes.
    pub triggers: Option<TriggerSpec>,
    /// Tokens that the grammar is taken to have seen already.
    pub prefill: Vec<Token>,
}

/// Owner of one `llama_sampler`.
struct Raw(NonNull<llama_sys::llama_sampler>);

// SAFETY: a llama_sampler has no tie to a thread; it is reached through `&mut` only.
unsafe impl Send for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the only owner; links of a chain are given away to it and not wrapped.
        unsafe { llama_sys::llama_sampler_free(self.0.as_ptr()) };
    }
}

/// A sampler chain, a grammar beside it, and the scratch they work on. Keeps the model alive, whose vocabulary the
/// grammar points into.
pub struct Sampler {
    chain: Raw,
    grammar: Option<Raw>,
    /// Of a lazy grammar that has not begun and need not see every token.
    watch: Option<Watch>,
    candidates: Vec<llama_sys::llama_token_data>,
    /// Nothing but the largest logit matters, but for these biases: the chain, which copies the whole vocabulary, need not
    /// run when the largest is not among them and none is above 0.
    greedy_but_for: Option<Vec<(Token, f32)>>,
    /// Whether accepted tokens change later choices.
    has_history: bool,
    model: Arc<Model>,
}

impl Sampler {
    /// Builds the chain. [`Error::Invalid`] when the grammar cannot be parsed.
    pub fn new(model: &Arc<Model>, spec: &SamplerSpec) -> Result<Self, Error> {
        let vocab = model.vocab();
        let grammar = spec.grammar.as_ref().map(|grammar| grammar_sampler(model, grammar)).transpose()?;
        let n_vocab = i32::try_from(vocab.n_tokens()).unwrap_or(i32::MAX);
        let chain = chain(spec, n_vocab)?;
        let has_penalties = has_penalties(spec);
        Ok(Self {
            chain,
            greedy_but_for: (spec.temperature <= 0.0 && !has_penalties).then(|| spec.logit_bias.clone()),
            has_history: has_penalties || grammar.is_some(),
            grammar,
            watch: spec.grammar.as_ref().and_then(|grammar| grammar.triggers.as_ref()).and_then(Watch::new),
            candidates: Vec::new(),
            model: model.clone(),
        })
    }

    /// Chooses the next token from one row of logits.
    ///
    /// A grammar costs a walk over the whole vocabulary, so the chain's choice is tried on it first, and only a choice
    /// that it refuses leads to that walk (as llama.cpp's common sampler does).
    pub fn sample(&mut self, logits: &[f32]) -> Result<Token, Error> {
        if let Some(token) = self.sample_greedily(logits)? {
            return Ok(token);
        }
        // A device that computes no numbers would otherwise make a choice of nothing.
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(no_logits());
        }
        self.fill(logits);
        let choice = apply(&self.chain, &mut self.candidates)?;
        let Some(grammar) = self.active_grammar() else { return Ok(choice) };
        let mut one = [llama_sys::llama_token_data { id: choice.0, logit: 1.0, p: 0.0 }];
        apply_in_place(grammar, &mut one)?;
        if one[0].logit != f32::NEG_INFINITY {
            return Ok(choice);
        }
        self.fill(logits);
        let Some(grammar) = &self.grammar else { return Ok(choice) };
        apply_in_place(grammar, &mut self.candidates)?;
        self.candidates.retain(|candidate| candidate.logit != f32::NEG_INFINITY);
        if self.candidates.is_empty() {
            return Err(Error::Failed("no token of the vocabulary fits the grammar here".to_owned()));
        }
        apply(&self.chain, &mut self.candidates)
    }

    /// The choice when it is plain: a bias of 0 or below can take a token out of the race, not bring one in front.
    fn sample_greedily(&self, logits: &[f32]) -> Result<Option<Token>, Error> {
        let Some(biases) = &self.greedy_but_for else { return Ok(None) };
        if self.active_grammar().is_some() {
            return Ok(None);
        }
        let best = argmax(logits).ok_or_else(no_logits)?;
        let is_plain = biases.iter().all(|&(token, bias)| bias <= 0.0 && token != best);
        Ok(is_plain.then_some(best))
    }

    /// Tells the samplers that a token was generated.
    pub fn accept(&mut self, token: Token) -> Result<(), Error> {
        if let Some(watch) = &mut self.watch {
            if let Some(tokens) = watch.accept(token, self.model.vocab()) {
                self.watch = None;
                self.accept_into_grammar(&tokens)?;
            }
        } else {
            self.accept_into_grammar(&[token])?;
        }
        accept(&self.chain, token)
    }

    fn accept_into_grammar(&self, tokens: &[Token]) -> Result<(), Error> {
        let Some(grammar) = &self.grammar else { return Ok(()) };
        tokens.iter().try_for_each(|&token| accept(grammar, token))
    }

    /// The grammar, unless it has not begun.
    fn active_grammar(&self) -> Option<&Raw> {
        self.grammar.as_ref().filter(|_| self.watch.is_none())
    }

    /// Tells the penalties which tokens came before (the prompt); the grammar does not see them.
    pub fn accept_prompt(&mut self, tokens: &[Token]) -> Result<(), Error> {
        if !self.has_history {
            return Ok(());
        }
        tokens.iter().try_for_each(|&token| accept(&self.chain, token))
    }

    fn fill(&mut self, logits: &[f32]) {
        self.candidates.clear();
        let candidates = logits.iter().zip(0..).map(|(&logit, id)| llama_sys::llama_token_data { id, logit, p: 0.0 });
        self.candidates.extend(candidates);
    }
}

/// The index of the largest logit, the first of equals; `None` when there is no number among them.
pub(crate) fn argmax(logits: &[f32]) -> Option<Token> {
    // Two passes, each of which the compiler turns into vector code: the largest value, then where it stands.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = logits.chunks_exact(16);
    let mut best = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    best = lanes.iter().copied().fold(best, f32::max);
    let index = logits.iter().position(|&value| value == best)?;
    i32::try_from(index).ok().map(Token)
}

fn no_logits() -> Error {
    Error::Failed("the model's logits are not numbers".to_owned())
}

fn has_penalties(spec: &SamplerSpec) -> bool {
    let any = spec.repeat_penalty != 1.0 || spec.presence_penalty != 0.0 || spec.frequency_penalty != 0.0;
    any && spec.repeat_last_n > 0
}

fn chain(spec: &SamplerSpec, n_vocab: i32) -> Result<Raw, Error> {
    // SAFETY: plain constructors without preconditions; a link added to the chain is owned by it from then on, and the
    // bias list is copied.
    unsafe {
        let mut params = llama_sys::llama_sampler_chain_default_params();
        params.no_perf = true;
        let chain = wrap(llama_sys::llama_sampler_chain_init(params))?;
        let add = |link| llama_sys::llama_sampler_chain_add(chain.0.as_ptr(), link);
        if !spec.logit_bias.is_empty() {
            let bias: Vec<_> = spec
                .logit_bias
                .iter()
                .map(|&(token, bias)| llama_sys::llama_logit_bias { token: token.0, bias })
                .collect();
            let n_bias = i32::try_from(bias.len()).unwrap_or(i32::MAX);
            add(llama_sys::llama_sampler_init_logit_bias(n_vocab, n_bias, bias.as_ptr()));
        }
        if has_penalties(spec) {
            let last_n = i32::try_from(spec.repeat_last_n).unwrap_or(i32::MAX);
            add(llama_sys::llama_sampler_init_penalties(
                n_vocab,
                last_n,
                spec.repeat_penalty,
                spec.frequency_penalty,
                spec.presence_penalty,
            ));
        }
        if spec.temperature <= 0.0 {
            add(llama_sys::llama_sampler_init_greedy());
            return Ok(chain);
        }
        if spec.top_k > 0 {
            add(llama_sys::llama_sampler_init_top_k(i32::try_from(spec.top_k).unwrap_or(i32::MAX)));
        }
        if spec.typical_p < 1.0 {
            add(llama_sys::llama_sampler_init_typical(spec.typical_p, 1));
        }
        if spec.top_p < 1.0 {
            add(llama_sys::llama_sampler_init_top_p(spec.top_p, 1));
        }
        if spec.min_p > 0.0 {
            add(llama_sys::llama_sampler_init_min_p(spec.min_p, 1));
        }
        add(llama_sys::llama_sampler_init_temp(spec.temperature));
        add(llama_sys::llama_sampler_init_dist(spec.seed));
        Ok(chain)
    }
}

fn grammar_sampler(model: &Model, spec: &GrammarSpec) -> Result<Raw, Error> {
    if !model.vocab().has_tokenizer() {
        return Err(Error::Invalid("a grammar needs a model with a tokenizer".to_owned()));
    }
    super::grammar_guard::check(&spec.gbnf)?;
    let gbnf = c_string(spec.gbnf.as_str())?;
    let patterns = spec.triggers.as_ref().map(TriggerSpec::all_patterns).unwrap_or_default();
    let tokens: &[Token] = spec.triggers.as_ref().map_or(&[], |triggers| &triggers.tokens);
    let patterns = patterns.iter().map(|pattern| c_string(pattern.as_str())).collect::<Result<Vec<_>, _>>()?;
    let mut pointers: Vec<*const c_char> = patterns.iter().map(|pattern| pattern.as_ptr()).collect();
    let mut ptr = std::ptr::null_mut();
    // SAFETY: all strings and lists outlive the call, lengths are theirs; llama.cpp copies what it keeps, but for the
    // vocabulary, which the Sampler's Arc<Model> keeps alive.
    check(|err| unsafe {
        llama_sys::onebit_sampler_grammar(
            model.vocab().as_ptr(),
            gbnf.as_ptr(),
            c"root".as_ptr(),
            spec.triggers.is_some(),
            pointers.as_mut_ptr(),
            pointers.len(),
            tokens.as_ptr().cast(),
            tokens.len(),
            &raw mut ptr,
            err,
        )
    })?;
    // SAFETY: the shim gave a sampler that nobody else owns.
    let grammar = unsafe { wrap(ptr) }?;
    spec.prefill.iter().try_for_each(|&token| accept(&grammar, token))?;
    Ok(grammar)
}

/// # Safety
///
/// `ptr` is NULL or a sampler that nobody else owns.
unsafe fn wrap(ptr: *mut llama_sys::llama_sampler) -> Result<Raw, Error> {
    NonNull::new(ptr).map(Raw).ok_or_else(|| Error::Failed("llama.cpp made no sampler".to_owned()))
}

fn accept(sampler: &Raw, token: Token) -> Result<(), Error> {
    // SAFETY: the sampler is alive and, by `&mut self` of the callers, used by this thread only.
    check(|err| unsafe { llama_sys::onebit_sampler_accept(sampler.0.as_ptr(), token.0, err) })
}

fn apply_in_place(sampler: &Raw, candidates: &mut [llama_sys::llama_token_data]) -> Result<Option<usize>, Error> {
    let mut array = llama_sys::llama_token_data_array {
        data: candidates.as_mut_ptr(),
        size: candidates.len(),
        selected: -1,
        sorted: false,
    };
    // SAFETY: the array points at `candidates` with its length; samplers reorder and shorten it in place.
    check(|err| unsafe { llama_sys::onebit_sampler_apply(sampler.0.as_ptr(), &raw mut array, err) })?;
    let selected = usize::try_from(array.selected).ok().filter(|&index| index < array.size);
    // A sampler may put its result elsewhere only if it owns that memory; ours are llama.cpp's own, which do not.
    debug_assert_eq!(array.data, candidates.as_mut_ptr());
    Ok(selected)
}

fn apply(chain: &Raw, candidates: &mut [llama_sys::llama_token_data]) -> Result<Token, Error> {
    let selected = apply_in_place(chain, candidates)?.ok_or_else(no_logits)?;
    Ok(Token(candidates[selected].id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_takes_the_first_of_equals() {
        let mut logits = vec![0.0; 100];
        logits[37] = 5.0;
        logits[73] = 5.0;
        assert_eq!(argmax(&logits), Some(Token(37)));
        assert_eq!(argmax(&[-1.0, -0.5]), Some(Token(1)));
        assert_eq!(argmax(&[f32::NAN, f32::NAN]), None);
        assert_eq!(argmax(&[]), None);
    }
}
