//! Where numbers come from: without it they mean nothing to anybody else, and little to oneself a month later.

use serde_json::{Value, json};

use crate::engine::{EngineConfig, ModelInfo};

use super::{BenchArgs, N_WARM_UP};

pub(super) struct Origin {
    cpu: String,
    n_cpus: usize,
    n_threads: u32,
    n_threads_batch: u32,
    /// File name, which is enough to know a model by and tells nothing of the machine.
    model: String,
    n_bytes: u64,
    quantization: String,
    description: String,
    cache_type_k: String,
    cache_type_v: String,
    n_ctx: u32,
    n_gen: u32,
    n_runs: u32,
}

impl Origin {
    pub(super) fn new(args: &BenchArgs, config: &EngineConfig, info: &ModelInfo) -> Self {
        let n_threads = config.n_threads.filter(|&n| n > 0).unwrap_or_else(crate::llama::cpu_threads);
        Self {
            cpu: cpu(),
            n_cpus: std::thread::available_parallelism().map_or(1, usize::from),
            n_threads,
            n_threads_batch: config.n_threads_batch.filter(|&n| n > 0).unwrap_or(n_threads),
            model: info.path.file_name().unwrap_or(info.path.as_os_str()).to_string_lossy().into_owned(),
            // The tensors where the file cannot be asked any more.
            n_bytes: std::fs::metadata(&info.path).map_or(info.n_bytes, |metadata| metadata.len()),
            quantization: info.file_type.clone(),
            description: info.description.clone(),
            cache_type_k: config.cache_type_k.to_string(),
            cache_type_v: config.cache_type_v.to_string(),
            n_ctx: info.n_ctx,
            n_gen: args.gen_tokens,
            n_runs: args.runs,
        }
    }

    /// Lines for people.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        #[allow(clippy::cast_precision_loss)] // shown with one decimal
        let mebibytes = self.n_bytes as f64 / f64::from(1 << 20);
        let Self { n_threads, n_threads_batch, .. } = self;
        let batch =
            if n_threads == n_threads_batch { String::new() } else { format!(", {n_threads_batch} for prompts") };
        vec![
            ("build", format!("{}; llama.cpp {}", onebit(), crate::llama::source())),
            ("model", format!("{}, {mebibytes:.1} MiB, {}", self.model, self.quantization)),
            ("machine", format!("{}, {} CPUs, {n_threads} threads{batch}", self.cpu, self.n_cpus)),
            ("cache", format!("K {}, V {}, context {}", self.cache_type_k, self.cache_type_v, self.n_ctx)),
            ("runs", format!("median of {} (least..most), {N_WARM_UP} more before them", self.n_runs)),
            ("answers", format!("{} tokens", self.n_gen)),
        ]
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "onebit": {"version": env!("CARGO_PKG_VERSION"), "revision": env!("ONEBIT_REVISION")},
            "llama_cpp": {"build": crate::llama::build_number(), "source": crate::llama::source()},
            "machine": {
                "cpu": self.cpu, "arch": std::env::consts::ARCH, "cpus": self.n_cpus,
                "threads": self.n_threads, "threads_batch": self.n_threads_batch,
            },
            "model": {
                "file": self.model, "bytes": self.n_bytes, "quantization": self.quantization,
                "description": self.description,
            },
            "cache": {"k": self.cache_type_k, "v": self.cache_type_v, "context": self.n_ctx},
            "runs": self.n_runs,
            "warm_up_runs": N_WARM_UP,
            "gen_tokens": self.n_gen,
        })
    }
}

pub(super) fn onebit() -> String {
    let revision = env!("ONEBIT_REVISION");
    let separator = if revision.is_empty() { "" } else { ", revision " };
    format!("onebit {}{separator}{revision}", env!("CARGO_PKG_VERSION"))
}

/// The CPU's name as Linux tells it, the architecture elsewhere.
fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}
