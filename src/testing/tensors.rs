use crate::llama::Error;
use crate::llama::gguf::Writer;

/// The tensors of a file, and where their values come from.
pub(super) struct Tensors<'a> {
    gguf: &'a mut Writer,
    weights: Weights,
}

impl<'a> Tensors<'a> {
    pub fn new(gguf: &'a mut Writer, seed: u64) -> Self {
        Self { gguf, weights: Weights(seed) }
    }

    /// A random matrix that maps `shape[0]` inputs to `shape[1]` outputs.
    pub fn matrix(&mut self, name: &str, shape: [usize; 2], deviation: f32) -> Result<(), Error> {
        let values = self.weights.normal(shape[0] * shape[1], deviation);
        self.values(name, &shape, values)
    }

    /// A random vector around `mean`.
    pub fn vector(&mut self, name: &str, n: usize, mean: f32, deviation: f32) -> Result<(), Error> {
        let values = self.weights.normal(n, deviation).into_iter().map(|value| mean + value).collect();
        self.values(name, &[n], values)
    }

    /// The weights of a normalization that changes nothing.
    pub fn ones(&mut self, name: &str, n: usize) -> Result<(), Error> {
        self.values(name, &[n], vec![1.0; n])
    }

    pub fn values(&mut self, name: &str, shape: &[usize], values: Vec<f32>) -> Result<(), Error> {
        self.gguf.tensor(name, shape, values).map(drop)
    }
}

/// Reproducible pseudo-random numbers (splitmix64), about normal: the sum of four uniform ones.
struct Weights(u64);

impl Weights {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        #[allow(clippy::cast_precision_loss)] // 24 bits fit an f32
        let unit = (z >> 40) as f32 / (1u32 << 24) as f32;
        unit - 0.5
    }

    fn normal(&mut self, n: usize, deviation: f32) -> Vec<f32> {
        // Each summand has variance 1/12, four of them 1/3.
        let scale = deviation * 3f32.sqrt();
        (0..n).map(|_| (self.next() + self.next() + self.next() + self.next()) * scale).collect()
    }
}
