use std::io::BufReader;

use proptest::prelude::*;

use super::*;

/// Everything this module does with a file, for files nobody vouches for: none of it may panic.
fn use_it(file: &[u8], model: &Model, layout: &Layout) -> Result<Checked, StateError> {
    let len = file.len() as u64;
    let _ = inspected(file);
    let _ = Layout::learn(file, &model.facts);
    let _ = diffed(model.v4, file, layout, Some(8));
    let result = check_prompt(file, layout, &prompt(), model.n_states);
    // a small odd buffer must not change the verdict
    let expect = Expect { ids: &prompt(), n_states: model.n_states, n_ctx: 1024, scan: true };
    let buffered = check(&mut BufReader::with_capacity(37, file), len, layout, &expect);
    assert_eq!(buffered.map_err(|e| e.to_string()), result.as_ref().cloned().map_err(|e| e.to_string()));
    let mut copy = Vec::new();
    let copied = check_and_convert(&mut &file[..], len, layout, &expect, &mut copy);
    assert_eq!(copied.is_ok(), result.is_ok());
    if result.is_ok() {
        assert!(converted(file, layout, 4).unwrap() == copy);
        assert!(check_prompt(&copy, layout, &prompt(), model.n_states).unwrap().native);
    }
    result
}

#[test]
fn every_truncation_is_refused() {
    for model in models() {
        let layout = model.layout();
        let ids = prompt();
        let expect = Expect { ids: &ids, n_states: model.n_states, n_ctx: 1024, scan: false };
        for len in 0..model.v4.len() {
            let cut = &model.v4[..len];
            assert!(check(&mut &cut[..], len as u64, &layout, &expect).is_err(), "{} {len}", model.name);
            // the length was taken before the file was cut
            let error = check(&mut &cut[..], model.v4.len() as u64, &layout, &expect).unwrap_err();
            assert!(matches!(error, StateError::Truncated { .. }), "{} {len}: {error}", model.name);
            if len % 97 == 0 {
                assert!(use_it(cut, &model, &layout).is_err());
                assert!(converted(cut, &layout, 4).is_err());
            }
        }
    }
}

/// Each bit of each byte that is not a value: refused, but for the sequence ids of cells, which the loader ignores.
#[test]
fn every_flipped_bit_of_the_structure_is_refused() {
    for model in models() {
        let layout = model.layout();
        let report = inspected(model.v4).unwrap();
        let mut file = model.v4.to_vec();
        let mut free = vec![false; file.len()];
        for section in &report.sections {
            let attention = section.kind != SectionKind::Recurrent;
            let mut at = section.offset as usize + if attention { 8 } else { 4 };
            for _ in 0..section.n_cells {
                if attention {
                    free[at + 8..at + 12].fill(true);
                }
                at += if attention { 12 } else { 8 };
            }
            at += if attention { 16 } else { 8 };
            for block in &section.blocks {
                let rows = block.row.bytes as usize * section.n_cells as usize;
                free[at + 12..at + 12 + rows].fill(true);
                at += 12 + rows;
            }
        }
        assert!(free.iter().filter(|free| !**free).count() > 200);
        for at in (0..file.len()).filter(|at| !free[*at]) {
            for bit in 0..8 {
                file[at] ^= 1 << bit;
                assert!(model.check_with(&file, &layout).is_err(), "{}: bit {bit} of byte {at}", model.name);
                file[at] ^= 1 << bit;
            }
        }
    }
}

impl Model {
    fn check_with(&self, file: &[u8], layout: &Layout) -> Result<Checked, StateError> {
        check_prompt(file, layout, &prompt(), self.n_states)
    }
}

/// Numbers a field could be made.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..=64, any::<u32>(), Just(u32::MAX), Just(i32::MAX as u32), Just(1 << 31), Just(0x7c00_7c00)]
}

// 256 cases each; PROPTEST_CASES asks for more
proptest! {
    #[test]
    fn random_bytes(which in 0usize..3, keep in 0usize..400, tail in prop::collection::vec(any::<u8>(), 0..600)) {
        let model = &models()[which];
        let mut file = model.v4[..keep].to_vec();
        file.extend(tail);
        prop_assert!(use_it(&file, model, &model.layout()).is_err());
    }

    #[test]
    fn random_words(which in 0usize..3, edits in prop::collection::vec((0usize..7000, word()), 1..4)) {
        let model = &models()[which];
        let mut file = model.v4.to_vec();
        for (index, word) in edits {
            // half of the edits near the start, where most of the structure is
            let at = if index % 2 == 0 { 4 * (index % 200) } else { 4 * (index % (file.len() / 4)) };
            file[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let _ = use_it(&file, model, &model.layout());
    }

    #[test]
    fn random_cuts_and_joins(which in 0usize..3, from in 0usize..30_000, n in 0usize..3000, to in 0usize..30_000) {
        let model = &models()[which];
        let mut file = model.v4.to_vec();
        let from = from % file.len();
        let piece: Vec<u8> = file.drain(from..(from + n).min(model.v4.len())).collect();
        let to = to % (file.len() + 1);
        file.splice(to..to, piece);
        let result = use_it(&file, model, &model.layout());
        prop_assert!(result.is_err() || file.len() == model.v4.len());
    }
}
