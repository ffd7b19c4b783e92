//! Bad files, made from good ones.

use std::ops::Range;

use crate::map::{Block, Field, Map};
use crate::rng::Rng;

/// A file that is to be refused, or that means the same as the good one.
pub struct Mutation {
    pub what: String,
    pub file: Vec<u8>,
}

/// What mutations are made of.
pub struct Good {
    pub file: Vec<u8>,
    pub map: Map,
    /// Good files of other models, prompts and caches.
    pub others: Vec<(String, Vec<u8>)>,
}

impl Good {
    /// A mutation that changes something; the same for the same `rng`.
    pub fn mutate(&self, rng: &mut Rng) -> Mutation {
        loop {
            let (what, file) = match rng.below(100) {
                0..45 => self.one_field(rng),
                45..55 => self.some_fields(rng),
                55..67 => self.truncated(rng),
                67..72 => self.extended(rng),
                72..82 => self.rearranged(rng),
                82..88 => self.of_another(rng),
                88..96 => self.not_finite(rng),
                _ => self.garbage(rng),
            };
            if file != self.file && !self.is_of_other_values(&file) {
                return Mutation { what, file };
            }
        }
    }

    /// A file as well formed as the good one with other finite values (two layers changed places): not a matter of structure.
    fn is_of_other_values(&self, file: &[u8]) -> bool {
        let mut same_values = file.to_vec();
        let finite = same_values.len() == self.file.len()
            && self.map.blocks.iter().all(|block| block.is_finite(&file[block.rows.clone()]));
        if finite {
            self.map
                .blocks
                .iter()
                .for_each(|b| same_values[b.rows.clone()].copy_from_slice(&self.file[b.rows.clone()]));
        }
        finite && file != self.file && same_values != file && self.map.is_equivalent(&self.file, &same_values)
    }

    fn field(&self, rng: &mut Rng) -> &Field {
        let group = rng.below(self.map.n_groups);
        let fields: Vec<&Field> = self.map.fields.iter().filter(|field| field.group == group).collect();
        if fields.is_empty() { rng.choose(&self.map.fields) } else { fields[rng.below(fields.len())] }
    }

    fn one_field(&self, rng: &mut Rng) -> (String, Vec<u8>) {
        let mut file = self.file.clone();
        let what = set(&mut file, self.field(rng), rng);
        (what, file)
    }

    fn some_fields(&self, rng: &mut Rng) -> (String, Vec<u8>) {
        let mut file = self.file.clone();
        let all: Vec<String> = (0..2 + rng.below(3)).map(|_| set(&mut file, self.field(rng), rng)).collect();
        (all.join(", "), file)
    }

    fn truncated(&self, rng: &mut Rng) -> (String, Vec<u8>) {
        let len = match rng.below(2) {
            0 => *rng.choose(&self.map.boundaries()),
            _ => rng.below(self.file.len()),
        };
        (format!("cut to {len} bytes"), self.file[..len].to_vec())
    }

    fn extended(&self, rng: &mut Rng) -> (String, Vec<u8>) {
        let mut file = self.file.clone();
        let n = 1 + rng.below(64);
        let more = match rng.below(4) {
            0 => vec![0; n],
            1 => rng.bytes(n),
            2 => self.file.clone(),
            _ => self.file[self.file.len() - n..].to_vec(),
        };
        file.extend_from_slice(&more);
        (format!("{} bytes more", more.len()), file)
    }

    /// Sections, tensors, cells or anything: swapped, left out, or there twice.
    fn rearranged(&self, rng: &mut Rng) -> (String, Vec<u8>) {
        let (name, piece, other) = match rng.below(4) {
            0 => ("section", rng.choose(&self.map.sections).clone(), rng.choose(&self.map.sections).clone()),
            1 => ("tensor", rng.choose(&self.map.blocks).all.clone(), rng.choose(&self.map.blocks).all.clone()),
            2 => {
                let section = rng.below(self.map.cells.len());
                ("cell", self.cell(section, rng), self.cell(section, rng))
            }
            _ => ("piece", self.piece(rng), self.piece(rng)),
        };
        let what = format!("{name} {piece:?} and {other:?}");
        match rng.below(3) {
            0 => (format!("{what} swapped"), swapped(&self.file, piece, other)),
            1 => (format!("{name} {piece:?} left out"), [&self.file[..piece.start], &self.file[piece.end..]].concat()),
            _ => {
                let twice = [&self.file[..other.start], &self.file[piece.clone()], &self.file[other.start..]].concat();
                (format!("{name} {piece:?} again before {other:?}"), twice)
            }
        }
    }

    fn cell(&self, section: usize, rng: &mut Rng) -> Range<usize> {
        let (cells, n_bytes) = (&self.map.cells[section], self.map.n_cell_bytes[section]);
        let at = cells.start + n_bytes * rng.below(cells.len() / n_bytes);
        at..at + n_bytes
    }

    fn piece(&self, rng: &mut Rng) -> Range<usize> {
        let boundaries = self.map.boundaries();
        let (a, b) = (*rng.choose(&boundaries), *rng.choose(&boundaries));
        a.min(b)..a.max(b)
    }

    /// Another model's file, with its own ids or with these.
    fn of_another(&self, rng: &mut Rng) -> (String, Vec<u8>) {
        let (name, other) = rng.choose(&self.others);
        if rng.below(3) == 0 {
            return (format!("the file of {name}"), other.clone());
        }
        let body = Map::of(other).body;
        (format!("the memory of {name}"), [&self.file[..self.map.body], &other[body..]].concat())
    }

    fn not_finite(&self, rng: &mut Rng) -> (String, Vec<u8>) {
        let mut file = self.file.clone();
        let blocks: Vec<&Block> = self.map.blocks.iter().filter(|block| !block.rows.is_empty()).collect();
        let block = blocks[rng.below(blocks.len())];
        let mut at = 0;
        for _ in 0..1 + rng.below(3) {
            at = block.rows.start + rng.below(block.rows.len() / block.unit()) * block.unit();
            match block.ty.name {
                "f32" => {
                    let bits = *rng.choose(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN]);
                    file[at..at + 4].copy_from_slice(&bits.to_le_bytes());
                }
                // f16 values, or the f16 scale of a quantized block.
                _ => file[at..at + 2].copy_from_slice(&rng.choose(&[0x7c00u16, 0xfc00, 0x7e00, 0xffff]).to_le_bytes()),
            }
        }
        (format!("not a number at {at}"), file)
    }

    fn garbage(&self, rng: &mut Rng) -> (String, Vec<u8>) {
        let keep = match rng.below(3) {
            0 => self.map.body,
            1 => *rng.choose(&self.map.boundaries()),
            _ => 0,
        };
        let n = if rng.below(2) == 0 { self.file.len() - keep } else { rng.below(1000) };
        (format!("{n} random bytes after {keep} good ones"), [&self.file[..keep], &rng.bytes(n)].concat())
    }
}

impl Block {
    /// Bytes between two numbers that can be infinite.
    fn unit(&self) -> usize {
        self.ty.block_bytes as usize
    }

    fn is_finite(&self, rows: &[u8]) -> bool {
        rows.chunks_exact(self.unit()).all(|unit| match self.ty.name {
            "f32" => f32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]).is_finite(),
            _ => u16::from_le_bytes([unit[0], unit[1]]) & 0x7c00 != 0x7c00,
        })
    }
}

/// Sets a field to something else; says what.
fn set(file: &mut [u8], field: &Field, rng: &mut Rng) -> String {
    let bytes = &mut file[field.at..field.at + field.n_bytes];
    let mut old = [0; 8];
    old[..bytes.len()].copy_from_slice(bytes);
    let old = u64::from_le_bytes(old);
    const EDGES: [u64; 18] = [
        0,
        1,
        2,
        3,
        4,
        5,
        31,
        32,
        33,
        64,
        256,
        512,
        1 << 16,
        i32::MAX as u64,
        1 << 31,
        u32::MAX as u64,
        i64::MAX as u64,
        u64::MAX,
    ];
    let new = match rng.below(6) {
        0 | 1 => *rng.choose(&EDGES),
        2 => rng.next(),
        3 => old.wrapping_add(1 + rng.below(3) as u64),
        4 => old.wrapping_sub(1 + rng.below(3) as u64),
        _ => old ^ 1 << rng.below(8 * field.n_bytes),
    };
    let n = bytes.len();
    bytes.copy_from_slice(&new.to_le_bytes()[..n]);
    format!("{} at {}: {old:#x} -> {new:#x}", field.what, field.at)
}

/// Two pieces that do not overlap change places; of others the first is left out.
fn swapped(file: &[u8], a: Range<usize>, b: Range<usize>) -> Vec<u8> {
    let (a, b) = if a.start <= b.start { (a, b) } else { (b, a) };
    if a.end > b.start {
        return [&file[..a.start], &file[a.end..]].concat();
    }
    [&file[..a.start], &file[b.clone()], &file[a.end..b.start], &file[a], &file[b.end..]].concat()
}
