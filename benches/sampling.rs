//! What choosing a token costs, and turning tokens into text: both once for each token of an answer.
//!
//!     [ONEBIT_SERVE_TEST_GGUF=model.gguf] cargo bench --bench sampling
//!
//! Only the vocabulary is loaded, of that model or of a tiny one.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use onebit::llama::{GrammarSpec, Model, ModelParams, Sampler, SamplerSpec, Token};
use onebit::testing::TinyModel;

fn model() -> Arc<Model> {
    let params = ModelParams { devices: Vec::new(), n_gpu_layers: None, vocab_only: true };
    let load = |path: &Path| Arc::new(Model::load(path, &params, &mut |_| true).expect("the model loads"));
    if let Some(path) = std::env::var_os("ONEBIT_SERVE_TEST_GGUF") {
        return load(Path::new(&path));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny.gguf");
    TinyModel::llama().write(&path).expect("the tiny model is written");
    load(&path)
}

/// Greedy, without anything else.
fn greedy() -> SamplerSpec {
    SamplerSpec {
        temperature: 0.0,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        typical_p: 1.0,
        repeat_penalty: 1.0,
        repeat_last_n: 64,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 1,
        logit_bias: Vec::new(),
        grammar: None,
    }
}

fn sampler(c: &mut Criterion) {
    let model = model();
    let n_vocab = model.vocab().n_tokens();
    // Many middling values and few large ones, in no order.
    let logits: Vec<f32> = (0..n_vocab).map(|id| (id.wrapping_mul(2_654_435_761) >> 16) as f32 / 6553.6).collect();
    let warm = SamplerSpec { temperature: 0.8, ..greedy() };
    let digits = GrammarSpec { gbnf: "root ::= [0-9]+".to_owned(), ..GrammarSpec::default() };
    let mut group = c.benchmark_group(format!("sampler, {n_vocab} tokens"));
    for (name, spec) in [
        ("greedy", greedy()),
        ("top_k, top_p, min_p, temperature", warm.clone()),
        ("with penalties", SamplerSpec { repeat_penalty: 1.1, ..warm.clone() }),
        ("all of the vocabulary", SamplerSpec { top_k: 0, ..warm }),
        ("greedy in a grammar", SamplerSpec { grammar: Some(digits), ..greedy() }),
    ] {
        // A grammar's state grows with what it has seen, so each token is the first.
        let fresh = || Sampler::new(&model, &spec).expect("the chain is built");
        group.bench_function(name, |b| {
            b.iter_batched_ref(
                fresh,
                |sampler| {
                    let token = sampler.sample(black_box(&logits)).expect("a token");
                    sampler.accept(token).expect("accepted");
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn detokenizer(c: &mut Criterion) {
    const N_TOKENS: u32 = 1000;
    let model = model();
    let vocab = model.vocab();
    let tokens: Vec<Token> = (0..N_TOKENS).map(|i| Token((i * 37 % vocab.n_tokens()).cast_signed())).collect();
    let text = vocab.detokenize(&tokens);
    let mut group = c.benchmark_group(format!("text, {N_TOKENS} tokens"));
    group.throughput(Throughput::Elements(N_TOKENS.into()));
    group.bench_function("detokenize", |b| b.iter(|| vocab.detokenize(black_box(&tokens))));
    group.bench_function("token by token", |b| {
        let mut bytes = Vec::new();
        b.iter(|| {
            bytes.clear();
            tokens.iter().for_each(|&token| vocab.append_bytes(black_box(token), false, &mut bytes));
        });
    });
    group.bench_function("tokenize", |b| b.iter(|| vocab.tokenize(black_box(&text), false, false).expect("tokens")));
    group.finish();
}

criterion_group!(benches, sampler, detokenizer);
criterion_main!(benches);
