use super::*;

/// Makes well-formed files of any layout.
struct Made {
    layout: Layout,
    version: u32,
    ids: Vec<i32>,
    n: u32,
    /// First position of the window section and position of its first cell.
    window: (u32, u32),
    packed: bool,
}

impl Made {
    fn new(layout: Layout, n: u32) -> Made {
        Made {
            version: layout.native,
            layout,
            ids: (0..n as i32).map(|i| i + 100).collect(),
            n,
            window: (0, 0),
            packed: false,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut words = vec![header::MAGIC as i32, self.version as i32];
        if self.packed {
            words.extend([self.ids.len() as i32 + 4, -1, 1, self.ids.len() as i32]);
            words.extend(&self.ids);
            words.push(0);
        } else {
            words.push(self.ids.len() as i32);
            words.extend(&self.ids);
        }
        let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.layout.sections.iter().for_each(|section| self.section(section, &mut out));
        out
    }

    fn section(&self, section: &SectionLayout, out: &mut Vec<u8>) {
        let mut words = Vec::new();
        let positions: Vec<u32> = match section.kind {
            SectionKind::Attention => (0..self.n).collect(),
            SectionKind::Window => (self.window.1..self.n).chain(self.window.0..self.window.1).collect(),
            SectionKind::Recurrent => vec![self.n - 1],
        };
        let attention = section.kind != SectionKind::Recurrent;
        words.extend(attention.then_some(1));
        words.push(positions.len() as u32);
        for pos in &positions {
            words.extend([*pos, u32::from(attention)]);
            if section.cell_ext {
                words.extend([*pos, *pos, self.ids[*pos as usize] as u32]);
            }
            words.extend(attention.then_some(0));
        }
        words.extend([0, section.n_layer]);
        if attention && self.version >= 4 {
            words.extend([section.n_rot_k, section.n_rot_v]);
        }
        out.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        for block in &section.blocks {
            out.extend(block.row.ty.number.to_le_bytes());
            out.extend(block.row.bytes.to_le_bytes());
            // values that tell position and layer, and are finite in every type
            for pos in &positions {
                out.extend((0..block.row.bytes).map(|_| (*pos as u8 ^ block.id.layer as u8) & 0x3f));
            }
        }
    }

    fn check(&self) -> Result<Checked, StateError> {
        check_prompt(&self.bytes(), &self.layout, &self.ids, self.n as usize)
    }
}

fn section(kind: SectionKind, tensors: &[(Tensor, i32, u64)], n_layer: u32) -> SectionLayout {
    let blocks = tensors.iter().flat_map(|&(tensor, number, bytes)| {
        (0..n_layer).map(move |layer| BlockShape {
            id: BlockId { section: kind, tensor, layer },
            row: Row::new(number, bytes).unwrap(),
        })
    });
    SectionLayout { kind, cell_ext: false, n_rot_k: 0, n_rot_v: 0, n_layer, blocks: blocks.collect() }
}

const F16: i32 = 1;
const Q8_0: i32 = 8;

fn layout(sections: Vec<SectionLayout>) -> Layout {
    Layout { native: 4, n_swa: 0, swa_chunked: false, sections }
}

/// A plain cache of two layers.
fn plain(number: i32, bytes: u64) -> Layout {
    layout(vec![section(SectionKind::Attention, &[(Tensor::K, number, bytes), (Tensor::V, number, bytes)], 2)])
}

/// Attention beside a recurrent state that 3 of 5 layers have.
fn hybrid() -> Layout {
    let mut recurrent = section(SectionKind::Recurrent, &[(Tensor::R, 0, 12), (Tensor::S, 0, 0)], 3);
    recurrent.n_layer = 5;
    let mut layout = plain(F16, 8);
    layout.sections.push(recurrent);
    layout
}

fn windowed(n_swa: u32, swa_chunked: bool) -> Layout {
    let mut layout = plain(F16, 8);
    layout.sections.push(section(SectionKind::Window, &[(Tensor::K, F16, 4), (Tensor::V, F16, 8)], 3));
    Layout { n_swa, swa_chunked, ..layout }
}

fn mrope() -> Layout {
    let mut layout = hybrid();
    layout.sections[0].cell_ext = true;
    layout
}

#[test]
fn learnt_from_one_token_and_good_for_many() {
    let facts = ModelFacts { n_layer: 5, ..PLAIN };
    let mla = layout(vec![section(SectionKind::Attention, &[(Tensor::K, F16, 1152)], 4)]);
    let mut rotated = plain(Q8_0, 68);
    rotated.sections[0].n_rot_k = 64;
    let hybrid_facts = ModelFacts { is_hybrid: true, ..facts };
    let mut mixed = plain(F16, 16);
    mixed.sections[0].blocks[1].row.bytes = 32;
    mixed.sections[0].blocks[3].row.bytes = 0;
    for (layout, facts) in [
        (plain(F16, 16), facts),
        (mixed, facts),
        (plain(20, 36), facts),
        (rotated, facts),
        (mla, facts),
        (hybrid(), hybrid_facts),
        (mrope(), hybrid_facts),
        (windowed(6, false), ModelFacts { n_swa: 6, ..facts }),
        (windowed(6, true), ModelFacts { n_swa: 6, swa_chunked: true, ..facts }),
        (layout(vec![hybrid().sections.remove(1)]), ModelFacts { is_recurrent: true, ..facts }),
    ] {
        for n_sample in [1, 2, 5] {
            let sample = Made::new(layout.clone(), n_sample).bytes();
            assert_eq!(Layout::learn(&sample, &facts).unwrap(), layout, "{n_sample}");
        }
        for n in [1, 2, 3, 5] {
            assert!(Made::new(layout.clone(), n).check().unwrap().native);
            let report = inspected(&Made::new(layout.clone(), n).bytes()).unwrap();
            assert_eq!(report.sections.into_iter().map(SectionLayout::from).collect::<Vec<_>>(), layout.sections);
        }
    }
}

#[test]
fn memories_that_are_not_handed_over() {
    let unsupported = |sample: &[u8], facts: &ModelFacts| {
        let text = sentence(Layout::learn(sample, facts));
        text.strip_prefix("this model's memory kind is not supported for handoff: ").expect(&text).to_string()
    };
    let facts = ModelFacts { n_layer: 5, ..PLAIN };
    let generic = "a short sequence of it reads as none of the known ones";
    // an indexer cache is a second attention section without a window, or with layers that are also in the first
    let window = Made::new(windowed(6, false), 2).bytes();
    assert_eq!(unsupported(&window, &facts), generic);
    assert_eq!(unsupported(&window, &ModelFacts { n_layer: 4, n_swa: 6, ..facts }), "it has an indexer cache");
    // no memory at all, a recurrent part that was not announced, three sections
    let sample = Made::new(layout(vec![]), 2).bytes();
    assert_eq!(unsupported(&sample, &facts), generic);
    assert_eq!(unsupported(&Made::new(hybrid(), 2).bytes(), &facts), generic);
    let mut three = windowed(6, false);
    three.sections.push(three.sections[1].clone());
    assert_eq!(unsupported(&Made::new(three, 2).bytes(), &ModelFacts { n_swa: 6, ..facts }), generic);
    // flash attention off; a number of streams that was not announced
    let mut sample = Made::new(plain(F16, 16), 1).bytes();
    sample[12 + 4 + 8 + 12] = 1;
    assert_eq!(unsupported(&sample, &facts), "V is stored transposed (flash attention is off)");
    let mut sample = Made::new(plain(F16, 16), 1).bytes();
    sample[16] = 2;
    assert!(unsupported(&sample, &facts).starts_with("its context has another number of streams"));
}

#[test]
fn windows_that_load_and_that_do_not() {
    // (chunked, n, first position held, position of the first cell) with a window of 6
    for (chunked, n, start, first, good) in [
        (false, 4, 0, 0, true),
        (false, 20, 14, 14, true), // exactly the window
        (false, 20, 14, 17, true), // round the end of a small cache
        (false, 20, 14, 19, true),
        (false, 20, 0, 0, true),  // every cell, as version 2a wrote
        (false, 20, 9, 12, true), // some that are masked
        (false, 20, 15, 15, false),
        (false, 20, 19, 19, false),
        (true, 20, 18, 18, true), // chunk of 18..24
        (true, 18, 12, 14, true), // a full chunk
        (true, 19, 18, 18, true), // a new chunk
        (true, 20, 19, 19, false),
        (true, 18, 14, 14, false),
    ] {
        let mut made = Made::new(windowed(6, chunked), n);
        made.window = (start, first);
        let result = made.check();
        assert_eq!(result.is_ok(), good, "{chunked} {n} {start} {first}: {result:?}");
    }
}

#[test]
fn a_turned_window_compares_by_position() {
    let mut straight = Made::new(windowed(6, false), 20);
    straight.window = (14, 14);
    let mut turned = Made::new(windowed(6, false), 20);
    turned.window = (12, 17);
    let diff = diffed(&straight.bytes(), &turned.bytes(), &straight.layout, None).unwrap();
    assert!(diff.blocks.iter().all(|block| block.same_bytes), "{diff:?}");
    assert!(diff.blocks.iter().any(|block| block.positions == (14..20)));
}

#[test]
fn only_what_means_the_same_is_converted() {
    let mut rotated = plain(F16, 16);
    rotated.sections[0].n_rot_k = 64;
    for (layout, text) in [
        (
            plain(Q8_0, 34),
            "written by llama.cpp state version 2, this build reads 4: quantized cache, can't be converted",
        ),
        (mrope(), "written by llama.cpp state version 2, this build reads 4: M-RoPE cells, can't be converted"),
        (rotated, "written by llama.cpp state version 2, this build reads 4: rotated cache, can't be converted"),
    ] {
        let old = Made { version: 2, ..Made::new(layout.clone(), 5) };
        assert_eq!(sentence(old.check()), text);
        assert_eq!(sentence(converted(&old.bytes(), &layout, 4)), text);
    }
    let new = Made { packed: true, ..Made::new(hybrid(), 5) };
    let old = Made { version: 3, packed: true, ..Made::new(hybrid(), 5) };
    assert_eq!((old.check().unwrap().native, old.check().unwrap().n_area), (false, 9));
    assert_eq!(converted(&old.bytes(), &old.layout, 4).unwrap(), new.bytes());
    assert_eq!(converted(&new.bytes(), &old.layout, 3).unwrap(), old.bytes());
    for version in [0, 1, 5, u32::MAX] {
        let made = Made { version, ..Made::new(hybrid(), 5) };
        let text = format!("state version {version} at byte 4: this build reads 4 and can convert 2 to 4 only");
        assert_eq!(sentence(made.check()), text);
    }
}

/// What a provider's author reads. The file: 3 ids, 3 M-RoPE cells from byte 32, rows from byte 128; a recurrent state.
#[test]
fn sentences() {
    let made = Made::new(mrope(), 3);
    let good = made.bytes();
    made.check().unwrap();
    let recurrent = 24 + 8 + 72 + 16 + 4 * (12 + 24);
    for (at, word, text) in [
        (
            0,
            0x6767_736e,
            "not a sequence-state file: magic 0x6767736e at byte 0, expected 0x67677371 (this is a whole-context file: use llama_state_seq_save_file)",
        ),
        (8, 2, "attention: 102 streams at byte 20, expected 1 (save one sequence of a context with one, or unified)"),
        (8, u32::MAX, "the file ends too early: token ids at byte 12 needs 17179869180 bytes, 380 are left"),
        (12, u32::MAX, "llama-server's packed token area: the number of words at byte 12 is 3, expected 4"),
        (28, 2, "attention: 2 cells at byte 28, expected 3"),
        (28, 2000, "attention: 2000 cells at byte 28, this context has room for 1024"),
        (32, u32::MAX, "attention: cell 0 at byte 32 has position -1, expected 0"),
        (56, 2, "attention: cell 1 at byte 56 has position 2, expected 1"),
        (60, 0, "attention: cell 1 at byte 60 has 0 sequence ids, expected 1"),
        (64, 7, "cell 1 at byte 64 has M-RoPE field x = 7, expected 1"),
        (72, 7, "cell 1 at byte 72 has M-RoPE field tok = 7, expected 101"),
        (
            104,
            1,
            "attention: transposition flag at byte 104 is 1, expected 0 (V untransposed: turn flash attention on)",
        ),
        (108, 3, "attention: 3 layers at byte 108, this model has 2"),
        (112, 64, "attention: n_rot_k at byte 112 is 64, expected 0 (another attention rotation)"),
        (120, 0, "K of layer 0 (attention): type f32 (0) at byte 120, expected f16 (1)"),
        (120, 99, "K of layer 0 (attention): type unknown (99) at byte 120, expected f16 (1)"),
        (124, 16, "K of layer 0 (attention): rows of 16 bytes at byte 124, expected 8"),
        (144, 0x7c00_0000, "K of layer 0 (attention): NaN or infinity in cell 1 at byte 146"),
        (recurrent, 2, "recurrent: 2 cells at byte 264, expected 1"),
        (recurrent + 4, 3, "recurrent: cell 0 at byte 268 has position 3, expected 2"),
        (recurrent + 8, 1, "recurrent: cell 0 at byte 272 has 1 sequence ids, expected 0"),
        (recurrent + 16, 3, "recurrent: 3 layers at byte 280, this model has 5"),
        (recurrent + 32, 0x7f80_0000, "R of layer 0 (recurrent): NaN or infinity in cell 0 at byte 296"),
    ] {
        let mut file = good.clone();
        file[at..at + 4].copy_from_slice(&word.to_le_bytes());
        // a wrong count among the ids would be seen before the section
        let n_ids = if at == 8 && word == 2 { 2 } else { 3 };
        assert_eq!(sentence(check_prompt(&file, &made.layout, &made.ids[..n_ids.max(2)], n_ids)), text);
    }
    // the sequence id is the loader's own affair
    let mut file = good.clone();
    file[52..56].copy_from_slice(&77u32.to_le_bytes());
    check_prompt(&file, &made.layout, &made.ids, 3).unwrap();
    let mut longer = good.clone();
    longer.push(0);
    assert_eq!(
        sentence(check_prompt(&longer, &made.layout, &made.ids, 3)),
        "1 bytes follow the end of the state at byte 392"
    );
    assert!(matches!(check_prompt(&good, &made.layout, &[], 0), Err(StateError::NothingExpected)));
    assert!(matches!(check_prompt(&good, &made.layout, &made.ids, 4), Err(StateError::ImpossibleExpectation { .. })));
}
