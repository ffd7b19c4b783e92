//! The shim's attention kernel against ggml's: a few tokens behind a long cache, and the same tokens as the end of one batch,
//! which ggml evaluates by itself.

use std::sync::Arc;

use crate::testing::TinyModel;

use super::{Batch, Context, ContextParams, KvType, Model, ModelParams, SeqId, Token};

const N_BEFORE: usize = 600;

struct Case {
    model: TinyModel,
    n_seq: u32,
    unified: bool,
    /// Tokens of each sequence that are evaluated together behind the cache.
    n_last: usize,
}

impl Case {
    fn of(model: TinyModel) -> Self {
        Self { model, n_seq: 1, unified: true, n_last: 1 }
    }

    fn context(&self) -> Context {
        let file = tempfile::NamedTempFile::new().unwrap();
        self.model.write(file.path()).unwrap();
        let model = Model::load(file.path(), &ModelParams::default(), &mut |_| true).unwrap();
        let params = ContextParams {
            n_ctx: 1024 * self.n_seq,
            n_batch: 4096,
            n_ubatch: 1024,
            n_seq: self.n_seq,
            unified: self.unified,
            n_threads: 3,
            n_threads_batch: 3,
            flash_attention: Some(true),
            type_k: KvType::F16,
            type_v: KvType::F16,
            embeddings: None,
        };
        Context::new(Arc::new(model), &params).unwrap()
    }

    /// The logits of each sequence's last token, with `n_apart` tokens of each in a batch of their own.
    fn logits(&self, n_apart: usize) -> Vec<Vec<f32>> {
        let mut context = self.context();
        let n = N_BEFORE + self.n_last;
        let push = |batch: &mut Batch, seq: u32, at: usize| {
            let token = 3 + (at * 31 + at / 7 + seq as usize * 17) % 256;
            let position = i32::try_from(at).unwrap();
            batch.push(Token(i32::try_from(token).unwrap()), position, SeqId(seq.cast_signed()), at + 1 == n)
        };
        let mut found = Vec::new();
        for seq in 0..self.n_seq {
            let mut batch = Batch::new();
            let rows: Vec<usize> = (0..n - n_apart).map(|at| push(&mut batch, seq, at)).collect();
            context.decode(&mut batch, Vec::new()).unwrap();
            if n_apart == 0 {
                found.push(context.logits(rows[n - 1]).unwrap().to_vec());
            }
        }
        if n_apart > 0 {
            let mut batch = Batch::new();
            let order = (0..self.n_seq).flat_map(|seq| (n - n_apart..n).map(move |at| (seq, at)));
            let rows: Vec<usize> = order.map(|(seq, at)| push(&mut batch, seq, at)).collect();
            context.decode(&mut batch, Vec::new()).unwrap();
            let last = rows.iter().skip(n_apart - 1).step_by(n_apart);
            found.extend(last.map(|row| context.logits(*row).unwrap().to_vec()));
        }
        found
    }

    fn check(&self, what: &str) {
        let expected = self.logits(0);
        let before = computed();
        let found = self.logits(self.n_last);
        if has_kernel() {
            assert!(computed() > before, "{what}: the kernel was not used");
        }
        assert_eq!((expected.len(), found.len()), (self.n_seq as usize, self.n_seq as usize));
        let largest = expected.iter().flatten().fold(0f32, |largest, x| largest.max(x.abs()));
        for (expected, found) in expected.iter().flatten().zip(found.iter().flatten()) {
            assert!((expected - found).abs() < 0.002 * largest, "{what}: {found}, not {expected}, of {largest}");
        }
    }
}

fn computed() -> u64 {
    // SAFETY: no preconditions; reads a counter.
    unsafe { llama_sys::onebit_attention_computed() }
}

fn has_kernel() -> bool {
    super::Device::by_name("ATTN").is_some()
}

#[test]
fn one_token() {
    // Query heads to one of K and V: 1 to 6, so each way of grouping; heads of 16 to 96 values.
    for (n_head, n_head_kv, size) in [(1, 1, 16), (4, 2, 32), (3, 1, 64), (8, 2, 48), (5, 1, 96), (6, 1, 32)] {
        let model = TinyModel::llama().with_width(n_head * size).with_heads(n_head, n_head_kv);
        Case::of(model).check(&format!("{n_head} heads of {size} on {n_head_kv}"));
    }
}

#[test]
fn several_tokens() {
    for n_last in [2, 3, 63] {
        Case { n_last, ..Case::of(TinyModel::llama()) }.check(&format!("{n_last} tokens"));
    }
}

#[test]
fn several_sequences() {
    for (n_seq, unified, n_last) in [(3, false, 1), (3, true, 1), (2, false, 2), (2, true, 4)] {
        let case = Case { n_seq, unified, n_last, ..Case::of(TinyModel::llama()) };
        case.check(&format!("{n_seq} sequences, unified: {unified}, {n_last} tokens"));
    }
}

#[test]
fn windows_and_running_states() {
    for model in [TinyModel::gemma3(), TinyModel::hybrid(), TinyModel::mrope()] {
        let what = format!("{:?}", model.architecture);
        Case::of(model).check(&what);
    }
}
