//! What reading and proving a state file costs, without llama.cpp: bytes in memory, a tiny real file and one of 20 MB.
//!
//!     cargo bench --bench state

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use onebit::state::{
    BlockId, BlockShape, Expect, GgmlType, Layout, ModelFacts, Row, SectionKind, SectionLayout, Tensor, check, inspect,
    read_header,
};

/// A file, what its model's files look like, and its prompt.
struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    layout: Layout,
    ids: Vec<i32>,
}

fn tiny() -> Case {
    let bytes = include_bytes!("../tests/fixtures/tiny-llama-40.v4.state").to_vec();
    let facts = ModelFacts::attention(3, 4);
    let layout = Layout::learn(&bytes, &facts).expect("the fixture is a good file");
    let ids = read_header(&mut &bytes[..], bytes.len() as u64).expect("a header").ids;
    Case { name: "tiny", bytes, layout, ids }
}

/// The shape of a model of 30 layers with rows of 192 values, as SmolLM2-135M has, and 890 tokens.
fn large() -> Case {
    let (n_layer, n, row_bytes) = (30, 890, 384);
    let ty = GgmlType::from_number(1).expect("f16");
    let row = Row { ty, bytes: row_bytes };
    let of = |tensor| {
        let id = move |layer| BlockId { section: SectionKind::Attention, tensor, layer };
        (0..n_layer).map(move |layer| BlockShape { id: id(layer), row })
    };
    let blocks: Vec<BlockShape> = of(Tensor::K).chain(of(Tensor::V)).collect();
    let ids: Vec<i32> = (100..100 + n).collect();
    let bytes = file(&ids, n_layer, &blocks);
    let section =
        SectionLayout { kind: SectionKind::Attention, cell_ext: false, n_rot_k: 0, n_rot_v: 0, n_layer, blocks };
    let layout = Layout { native: 4, n_swa: 0, swa_chunked: false, sections: vec![section] };
    Case { name: "20 MB", bytes, layout, ids }
}

/// A file of state version 4 with one attention section (docs: the format in `onebit::state`).
fn file(ids: &[i32], n_layer: u32, blocks: &[BlockShape]) -> Vec<u8> {
    let n = ids.len() as i32;
    let mut words = vec![0x6767_7371, 4, n];
    words.extend(ids);
    words.extend([1, n]);
    words.extend((0..n).flat_map(|position| [position, 1, 0]));
    words.extend([0, n_layer.cast_signed(), 0, 0]);
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    for block in blocks {
        bytes.extend(block.row.ty.number.to_le_bytes());
        bytes.extend(block.row.bytes.to_le_bytes());
        // Finite in every float type.
        bytes.extend((0..block.row.bytes * ids.len() as u64).map(|at| at as u8 & 0x3f));
    }
    bytes
}

fn state(c: &mut Criterion) {
    for case in [tiny(), large()] {
        let len = case.bytes.len() as u64;
        let mut group = c.benchmark_group(format!("state file, {}", case.name));
        group.throughput(Throughput::Bytes(len)).sample_size(20);
        for (name, scan) in [("check", true), ("check without the scan", false)] {
            let expect = Expect { ids: &case.ids, n_states: case.ids.len(), n_ctx: 4096, scan };
            group.bench_function(name, |b| {
                b.iter(|| {
                    check::check(&mut black_box(&case.bytes[..]), len, &case.layout, &expect).expect("a good file")
                });
            });
        }
        group.bench_function("inspect", |b| {
            b.iter(|| {
                inspect::inspect(&mut std::io::Cursor::new(black_box(&case.bytes)), len, None).expect("a good file")
            });
        });
        group.finish();
    }
}

criterion_group!(benches, state);
criterion_main!(benches);
