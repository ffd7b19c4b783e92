//! The real files of `tests/fixtures`, and made ones for the memories those do not have.

mod made;
mod mutations;
mod real;

use std::io::Cursor;

use super::*;

/// One fixture model: what the engine would say of it, and its file of the native version.
struct Model {
    name: &'static str,
    facts: ModelFacts,
    n_states: usize,
    v4: &'static [u8],
}

const PLAIN: ModelFacts = ModelFacts::attention(3, 4);

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/fixtures/", $name, ".state")).as_slice()
    };
}
use fixture;

fn models() -> [Model; 3] {
    [
        Model { name: "tiny-llama", facts: PLAIN, n_states: 40, v4: fixture!("tiny-llama-40.v4") },
        Model {
            name: "tiny-gemma3",
            facts: ModelFacts { n_layer: 6, n_swa: 32, ..PLAIN },
            n_states: 40,
            v4: fixture!("tiny-gemma3-40.v4"),
        },
        Model {
            name: "tiny-mamba",
            facts: ModelFacts { is_recurrent: true, ..PLAIN },
            n_states: 39,
            v4: fixture!("tiny-mamba-40.v4"),
        },
    ]
}

/// The prompt of every fixture.
fn prompt() -> Vec<i32> {
    (0..40).map(|i| (37 * i + 11) % 256).collect()
}

impl Model {
    fn layout(&self) -> Layout {
        Layout::learn(self.v4, &self.facts).unwrap()
    }

    fn check(&self, file: &[u8]) -> Result<Checked, StateError> {
        check_prompt(file, &self.layout(), &prompt(), self.n_states)
    }
}

fn check_prompt(file: &[u8], layout: &Layout, ids: &[i32], n_states: usize) -> Result<Checked, StateError> {
    let expect = Expect { ids, n_states, n_ctx: 1024, scan: true };
    check(&mut &file[..], file.len() as u64, layout, &expect)
}

fn converted(file: &[u8], layout: &Layout, to: u32) -> Result<Vec<u8>, StateError> {
    let mut out = Vec::new();
    let written = convert(&mut &file[..], file.len() as u64, layout, to, &mut out)?;
    assert_eq!(written, out.len() as u64);
    Ok(out)
}

fn inspected(file: &[u8]) -> Result<Report, StateError> {
    inspect(&mut Cursor::new(file), file.len() as u64, None)
}

fn diffed(a: &[u8], b: &[u8], layout: &Layout, n: Option<u32>) -> Result<Diff, StateError> {
    let (len_a, len_b) = (a.len() as u64, b.len() as u64);
    diff((&mut Cursor::new(a), len_a), (&mut Cursor::new(b), len_b), layout, n)
}

/// The error's one line, which the tests of sentences compare.
fn sentence<T: std::fmt::Debug>(result: Result<T, StateError>) -> String {
    let text = result.unwrap_err().to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}
