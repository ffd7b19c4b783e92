//! ggml's tensor types: number, name and block size, from `ggml.h` (`enum ggml_type`) and `ggml-common.h`.

/// A tensor type llama.cpp can name; its rows are whole blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgmlType {
    /// Value of `enum ggml_type`, as state files hold it.
    pub number: i32,
    /// Name as `ggml_type_name` gives it.
    pub name: &'static str,
    /// Values in one block.
    pub block_len: u32,
    /// Bytes of one block.
    pub block_bytes: u32,
}

/// The largest `block_bytes` of the table (q8_K).
pub(super) const MAX_BLOCK_BYTES: usize = 292;

const fn ty(number: i32, name: &'static str, block_len: u32, block_bytes: u32) -> GgmlType {
    GgmlType { number, name, block_len, block_bytes }
}

const TYPES: &[GgmlType] = &[
    ty(0, "f32", 1, 4),
    ty(1, "f16", 1, 2),
    ty(2, "q4_0", 32, 18),
    ty(3, "q4_1", 32, 20),
    ty(6, "q5_0", 32, 22),
    ty(7, "q5_1", 32, 24),
    ty(8, "q8_0", 32, 34),
    ty(9, "q8_1", 32, 36),
    ty(10, "q2_K", 256, 84),
    ty(11, "q3_K", 256, 110),
    ty(12, "q4_K", 256, 144),
    ty(13, "q5_K", 256, 176),
    ty(14, "q6_K", 256, 210),
    ty(15, "q8_K", 256, 292),
    ty(16, "iq2_xxs", 256, 66),
    ty(17, "iq2_xs", 256, 74),
    ty(18, "iq3_xxs", 256, 98),
    ty(19, "iq1_s", 256, 50),
    ty(20, "iq4_nl", 32, 18),
    ty(21, "iq3_s", 256, 110),
    ty(22, "iq2_s", 256, 82),
    ty(23, "iq4_xs", 256, 136),
    ty(24, "i8", 1, 1),
    ty(25, "i16", 1, 2),
    ty(26, "i32", 1, 4),
    ty(27, "i64", 1, 8),
    ty(28, "f64", 1, 8),
    ty(29, "iq1_m", 256, 56),
    ty(30, "bf16", 1, 2),
    ty(34, "tq1_0", 256, 54),
    ty(35, "tq2_0", 256, 66),
    ty(39, "mxfp4", 32, 17),
    ty(40, "nvfp4", 64, 36),
    ty(41, "q1_0", 128, 18),
    ty(42, "q2_0", 64, 18),
];

impl GgmlType {
    /// The type with this number, if the pinned ggml has one.
    pub fn from_number(number: i32) -> Option<GgmlType> {
        TYPES.iter().copied().find(|t| t.number == number)
    }

    /// f32, f16 or bf16: the types llama.cpp's attention rotation leaves alone.
    pub fn is_float(self) -> bool {
        matches!(self.number, 0 | 1 | 30)
    }
}

/// "f16 (1)", or "unknown (99)".
pub(super) fn type_name(number: i32) -> String {
    format!("{} ({number})", GgmlType::from_number(number).map_or("unknown", |t| t.name))
}

/// Appends the values of whole blocks to `out`; false, and `out` untouched, for a type this does not decode.
///
/// Decodes f32, f16, bf16, q8_0 and q4_0. Bytes after the last whole block are ignored.
pub fn dequantize(ty: GgmlType, bytes: &[u8], out: &mut Vec<f32>) -> bool {
    match ty.name {
        "f32" => out.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
        "f16" => out.extend(bytes.as_chunks::<2>().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b)))),
        "bf16" => out.extend(bytes.as_chunks::<2>().0.iter().map(|b| f32::from_le_bytes([0, 0, b[0], b[1]]))),
        "q8_0" => {
            for b in bytes.as_chunks::<34>().0 {
                let d = f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
                out.extend(b[2..].iter().map(|q| d * f32::from(q.cast_signed())));
            }
        }
        "q4_0" => {
            for b in bytes.as_chunks::<18>().0 {
                let d = f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
                // low nibbles are the first 16 values, high nibbles the last 16
                out.extend(b[2..].iter().map(|q| d * (f32::from(q & 15) - 8.0)));
                out.extend(b[2..].iter().map(|q| d * (f32::from(q >> 4) - 8.0)));
            }
        }
        _ => return false,
    }
    true
}

/// IEEE half to single precision, exact.
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let exponent = u32::from(half >> 10) & 0x1f;
    let fraction = u32::from(half) & 0x3ff;
    match exponent {
        // subnormal: fraction * 2^-24
        0 => f32::from_bits(sign | (fraction as f32 / 16_777_216.0).to_bits()),
        0x1f => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves() {
        for (half, single) in
            [(0, 0.0), (0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (1, 5.960_464_5e-8), (0x03ff, 6.097_555e-5)]
        {
            assert_eq!(f16_to_f32(half), single, "{half:#x}");
        }
        assert!(f16_to_f32(0x7c00).is_infinite() && f16_to_f32(0x7e00).is_nan());
    }

    #[test]
    fn table_is_ordered_and_bounded() {
        assert!(TYPES.windows(2).all(|w| w[0].number < w[1].number));
        assert_eq!(TYPES.iter().map(|t| t.block_bytes as usize).max(), Some(MAX_BLOCK_BYTES));
    }

    #[test]
    fn quantized_blocks() {
        let mut q8 = vec![0x00, 0x38]; // d = 0.5
        q8.extend((0..32).map(|i| (i - 16) as i8 as u8));
        let mut out = Vec::new();
        assert!(dequantize(GgmlType::from_number(8).unwrap(), &q8, &mut out));
        assert_eq!((out.len(), out[0], out[31]), (32, -8.0, 7.5));

        let mut q4 = vec![0x00, 0x3c]; // d = 1
        q4.extend([0xf0; 16]);
        out.clear();
        assert!(dequantize(GgmlType::from_number(2).unwrap(), &q4, &mut out));
        assert_eq!((out[0], out[15], out[16], out[31]), (-8.0, -8.0, 7.0, 7.0));
        assert!(!dequantize(GgmlType::from_number(20).unwrap(), &q4, &mut out));
    }
}
