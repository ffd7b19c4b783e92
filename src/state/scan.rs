//! Finds NaN and infinity in rows of tensors, at the speed of memory.

use super::ggml_type::GgmlType;

/// Where the floating-point numbers of a type are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    /// All of it: f32.
    Words,
    /// All of it: 16 bits each.
    Halves(Floats),
    /// The first `n` halves of each block are scales; any other bits are a number.
    Scales { block_bytes: usize, n: usize },
    /// Types llama.cpp does not use for a cache.
    Nothing,
}

const F16: Floats = Floats::halves(0x7c00);
const BF16: Floats = Floats::halves(0x7f80);
const F32: Floats = Floats { exponents: 0x7f80_0000_7f80_0000, signs: 0x8000_0000_8000_0000 };

/// Bytes looked at before asking whether there was something.
const PIECE: usize = 1 << 14;

impl Scan {
    pub fn of(ty: GgmlType) -> Scan {
        let block_bytes = ty.block_bytes as usize;
        match ty.name {
            "f32" => Scan::Words,
            "f16" => Scan::Halves(F16),
            "bf16" => Scan::Halves(BF16),
            "q4_0" | "q5_0" | "q8_0" | "iq4_nl" => Scan::Scales { block_bytes, n: 1 },
            "q4_1" | "q5_1" | "q8_1" => Scan::Scales { block_bytes, n: 2 },
            _ => Scan::Nothing,
        }
    }

    /// Bytes that must be seen together.
    pub fn unit(self) -> usize {
        match self {
            Scan::Words => 4,
            Scan::Halves(_) => 2,
            Scan::Scales { block_bytes, .. } => block_bytes,
            Scan::Nothing => 1,
        }
    }

    /// Offset of the first unit that holds a NaN or an infinity; `bytes` is whole units.
    pub fn first_bad(self, bytes: &[u8]) -> Option<usize> {
        let unit = self.unit();
        let piece_bytes = PIECE / unit * unit;
        let (index, piece) = bytes.chunks(piece_bytes).enumerate().find(|(_, piece)| self.any_bad(piece))?;
        let in_piece = piece.chunks_exact(unit).position(|one| self.any_bad(one))?;
        Some(index * piece_bytes + in_piece * unit)
    }

    fn any_bad(self, bytes: &[u8]) -> bool {
        match self {
            Scan::Words => F32.any_bad(bytes),
            Scan::Halves(floats) => floats.any_bad(bytes),
            Scan::Scales { block_bytes, n } => {
                bytes.chunks_exact(block_bytes).fold(false, |bad, block| bad | F16.any_bad(&block[..2 * n]))
            }
            Scan::Nothing => false,
        }
    }
}

/// Several floating-point numbers in one 64-bit word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Floats {
    exponents: u64,
    signs: u64,
}

impl Floats {
    const fn halves(exponent: u16) -> Self {
        let each = 0x0001_0001_0001_0001;
        Self { exponents: exponent as u64 * each, signs: 0x8000 * each }
    }

    /// An exponent of ones, and no other, carries into its number's sign when its lowest bit is added. No branch, and eight
    /// bytes at a time even where the compiler makes no vector code of it.
    fn any_bad(self, bytes: &[u8]) -> bool {
        let lowest = self.signs - self.exponents;
        let carried = |word: [u8; 8]| (u64::from_le_bytes(word) & self.exponents) + lowest;
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words.iter().fold(carried(last), |all, word| all | carried(*word)) & self.signs != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(number: i32) -> Scan {
        Scan::of(GgmlType::from_number(number).unwrap())
    }

    #[test]
    fn finds_the_first() {
        let mut halves = vec![0x55; 100_000];
        assert_eq!(scan(1).first_bad(&halves), None);
        for (at, bits) in [(99_998, 0x7c00u16), (70_000, 0xfc00), (32_768, 0x7e01), (0, 0xffff)] {
            halves[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            assert_eq!(scan(1).first_bad(&halves), Some(at));
        }
        assert_eq!(scan(1).first_bad(&0x7bff_u16.to_le_bytes()), None);
        assert_eq!(scan(30).first_bad(&0x7f7f_u16.to_le_bytes()), None);
        assert_eq!(scan(30).first_bad(&0xff80_u16.to_le_bytes()), Some(0));
        let mut words = vec![0x7e; 40_000];
        assert_eq!(scan(0).first_bad(&words), None);
        words[20_000..20_004].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
        assert_eq!(scan(0).first_bad(&words), Some(20_000));
    }

    #[test]
    fn only_scales_of_quantized_blocks() {
        let mut blocks = vec![0xff; 34 * 600];
        blocks.chunks_mut(34).for_each(|block| block[..2].copy_from_slice(&[0, 0x38]));
        assert_eq!(scan(8).first_bad(&blocks), None);
        blocks[34 * 599 + 1] = 0x7c;
        assert_eq!(scan(8).first_bad(&blocks), Some(34 * 599));
        let mut block = [0; 20];
        block[3] = 0x7c;
        assert_eq!(scan(3).first_bad(&block), Some(0));
        assert_eq!(scan(2).first_bad(&block[..18]), None);
    }
}
