//! From an [`EngineConfig`] to a running decode thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::llama::{
    self, Batch, ChatTemplates, Context, ContextParams, KvType, Model, ModelParams, PoolingType, SeqId, Token, gguf,
};
use crate::state::{Layout, ModelFacts};
use crate::store::{Store, identity};

use super::device::{self, Selection};
use super::probe::Probe;
use super::restore::RestoreRules;
use super::thread::stored::{self, Stored};
use super::thread::{Command, Counts, DecodeLoop, Limits};
use super::{
    CacheType, DEFAULT_N_CTX, EmbeddingKind, EngineConfig, FlashAttention, LoadError, ModelInfo, Pooling, Shared,
};

pub(super) fn load(config: &EngineConfig, mut progress: impl FnMut(f32) -> bool) -> Result<Shared, LoadError> {
    require_readable(&config.model)?;
    for endpoint in &config.rpc_servers {
        llama::Device::add_rpc_server(endpoint).map_err(|err| LoadError::Device(err.to_string()))?;
    }
    let selection = device::select(&config.device, config.n_seq as usize).map_err(LoadError::Device)?;
    let params =
        ModelParams { devices: selection.devices.clone(), n_gpu_layers: config.n_gpu_layers, vocab_only: false };

    let mut cancelled = false;
    let model = Model::load(&config.model, &params, &mut |fraction| {
        let go_on = progress(fraction);
        cancelled |= !go_on;
        go_on
    });
    let model = match model {
        Ok(model) => Arc::new(model),
        Err(_) if cancelled => return Err(LoadError::Cancelled),
        Err(err) => return Err(model_error(config, err.to_string())),
    };
    if !model.has_decoder() && !config.embeddings {
        return Err(model_error(config, ENCODER.to_owned()));
    }
    let templates = templates(&model, config)?;
    let context_params = context_params(config, &model, &selection);
    require_memory(config, &params, &context_params, &model)?;
    llama::release_free_memory();
    start_thread(config, model, templates, &context_params, selection)
}

/// Finds the everyday mistakes before llama.cpp does, whose words for them are less plain.
fn require_readable(path: &Path) -> Result<(), LoadError> {
    let fail = |reason: String| LoadError::Unreadable { path: path.display().to_string(), reason };
    let metadata = std::fs::metadata(path).map_err(|err| fail(plain(&err)))?;
    if metadata.is_dir() {
        return Err(fail("it is a folder, not a GGUF file".to_owned()));
    }
    if !metadata.is_file() {
        // Opening a pipe would wait for somebody to write into it.
        return Err(fail("it is a device or a pipe, not a GGUF file".to_owned()));
    }
    let mut magic = [0u8; 4];
    let mut file = std::fs::File::open(path).map_err(|err| fail(plain(&err)))?;
    match std::io::Read::read_exact(&mut file, &mut magic) {
        Ok(()) if &magic == b"GGUF" => Ok(()),
        Ok(()) => Err(fail("it is not a GGUF file (it does not begin with `GGUF`)".to_owned())),
        Err(_) => Err(fail("it is not a GGUF file (it is too short)".to_owned())),
    }
}

/// The operating system's words without the error number.
fn plain(err: &std::io::Error) -> String {
    match err.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => err.to_string(),
    }
}

fn model_error(config: &EngineConfig, reason: String) -> LoadError {
    LoadError::Model { path: config.model.display().to_string(), reason }
}

/// The model's chat templates, or the one given. A model without any has none: chat is refused then, completions work.
fn templates(model: &Arc<Model>, config: &EngineConfig) -> Result<Option<ChatTemplates>, LoadError> {
    if config.chat_template.is_none() && model.chat_template().is_none() {
        return Ok(None);
    }
    let templates = ChatTemplates::new(model, config.chat_template.as_deref());
    match templates {
        Ok(templates) => Ok(Some(templates)),
        Err(err) if config.chat_template.is_some() => Err(LoadError::Template(err.to_string())),
        Err(err) => {
            tracing::warn!("the model's chat template cannot be used, chat is off: {err}");
            Ok(None)
        }
    }
}

fn context_params(config: &EngineConfig, model: &Model, selection: &Selection) -> ContextParams {
    let n_ctx_train = model.n_ctx_train();
    let n_ctx = match config.n_ctx {
        None => n_ctx_train.min(DEFAULT_N_CTX),
        Some(0) => n_ctx_train,
        Some(n_ctx) => n_ctx,
    };
    let n_threads = config.n_threads.filter(|&n| n > 0).unwrap_or_else(llama::cpu_threads);
    let is_hrx = selection.max_seq_per_batch == 1 && config.n_seq > 1 || selection.name.starts_with("HRX");
    ContextParams {
        n_ctx: n_ctx.saturating_mul(config.n_seq),
        // llama.cpp cuts what is evaluated together into equal parts where sequences have cells of their own; a pooled
        // embedding must see its text whole.
        unified: config.n_seq == 1 || config.kv_unified || config.embeddings,
        n_batch: config.n_batch,
        n_ubatch: config.n_ubatch.min(config.n_batch),
        n_seq: config.n_seq,
        n_threads,
        n_threads_batch: config.n_threads_batch.filter(|&n| n > 0).unwrap_or(n_threads),
        flash_attention: match config.flash_attention {
            // HRX computes attention with the fused kernel only.
            FlashAttention::Auto => is_hrx.then_some(true),
            FlashAttention::On => Some(true),
            FlashAttention::Off => Some(false),
        },
        type_k: kv_type(config.cache_type_k),
        type_v: kv_type(config.cache_type_v),
        embeddings: config.embeddings.then_some(config.pooling.map(pooling_type)),
    }
}

fn pooling_type(pooling: Pooling) -> PoolingType {
    match pooling {
        Pooling::None => PoolingType::None,
        Pooling::Mean => PoolingType::Mean,
        Pooling::Cls => PoolingType::Cls,
        Pooling::Last => PoolingType::Last,
    }
}

fn kv_type(cache_type: CacheType) -> KvType {
    match cache_type {
        CacheType::F32 => KvType::F32,
        CacheType::F16 => KvType::F16,
        CacheType::Bf16 => KvType::Bf16,
        CacheType::Q8_0 => KvType::Q8_0,
        CacheType::Q4_0 => KvType::Q4_0,
        CacheType::Q4_1 => KvType::Q4_1,
        CacheType::Iq4Nl => KvType::Iq4Nl,
        CacheType::Q5_0 => KvType::Q5_0,
        CacheType::Q5_1 => KvType::Q5_1,
    }
}

/// Refuses a context that cannot fit before its cache is touched: Linux would promise the memory and then kill the
/// process. The exact dry run costs a second read of the metadata, so it is made only when a generous estimate is not
/// clearly small.
fn require_memory(
    config: &EngineConfig,
    params: &ModelParams,
    context: &ContextParams,
    model: &Model,
) -> Result<(), LoadError> {
    let Some(available) = available_memory() else { return Ok(()) };
    if !params.devices.is_empty() {
        return Ok(());
    }
    let n_ctx = context.n_ctx / config.n_seq;
    // The dry run leaves out the cache, but not llama.cpp's notes on each cell (some 60 bytes). A context whose notes alone
    // would take a good part of the memory cannot have a cache in the rest.
    let notes = u64::from(context.n_ctx) * 64;
    if notes > available / 4 {
        let reason = format!("the notes on its cells alone take {}, and {} are available", gib(notes), gib(available));
        return Err(LoadError::Context { n_ctx, reason });
    }
    // K and V of f32, with heads up to four times as wide as the embedding.
    let generous = u64::from(context.n_ctx) * u64::from(model.n_layer()) * u64::from(model.n_embd()) * 2 * 4 * 4;
    if generous < available / 2 {
        return Ok(());
    }
    let need = match Model::memory_need(&config.model, params, context) {
        Ok(need) => need.context + need.compute,
        Err(err) => return Err(LoadError::Context { n_ctx, reason: err.to_string() }),
    };
    if need <= available {
        return Ok(());
    }
    Err(LoadError::Context {
        n_ctx,
        reason: format!("its KV cache and scratch space take {}, and {} are available", gib(need), gib(available)),
    })
}

fn gib(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let gib = bytes as f64 / f64::from(1 << 30);
    format!("{gib:.1} GiB")
}

/// Memory that Linux could hand out without swapping; `None` on other systems.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What the decode thread found out while it made the context.
struct Ready {
    n_ctx: u32,
    is_pooled: bool,
    generates: bool,
    n_ubatch: u32,
    state_bytes_full: u64,
    layout: Result<Layout, String>,
    counts: Arc<Counts>,
    store: Option<Arc<Store>>,
}

/// The context is made on the thread that will use it: its compute threads belong to that thread.
fn start_thread(
    config: &EngineConfig,
    model: Arc<Model>,
    templates: Option<ChatTemplates>,
    params: &ContextParams,
    selection: Selection,
) -> Result<Shared, LoadError> {
    let (commands, receiver) = channel();
    let (ready_sender, ready) = channel();
    let thread_model = model.clone();
    let (params, config_copy) = (params.clone(), config.clone());
    let max_seq_per_batch = selection.max_seq_per_batch;
    let body = move || match prepare(&thread_model, &params, &config_copy, max_seq_per_batch, receiver) {
        Ok((ready, decode_loop)) => {
            if ready_sender.send(Ok(ready)).is_ok() {
                decode_loop.run();
            }
        }
        Err(err) => {
            let _ = ready_sender.send(Err(err));
        }
    };
    let thread = std::thread::Builder::new().name("onebit-decode".to_owned()).spawn(body);
    let thread = thread.map_err(|err| model_error(config, format!("cannot start the decode thread: {err}")))?;
    let ready: Ready = match ready.recv() {
        Ok(result) => result?,
        Err(_) => return Err(model_error(config, "the decode thread ended while the context was made".to_owned())),
    };
    let info = model_info(config, &model, templates.is_some(), selection.name, &ready);
    let end_tokens = end_tokens(&model);
    let template_info = templates.as_ref().and_then(|templates| templates.info().ok());
    Ok(Shared {
        model,
        template_info: template_info.and_then(|info| serde_json::from_str(&info).ok()).unwrap_or_default(),
        templates,
        counts: ready.counts,
        info,
        end_tokens,
        layout: ready.layout,
        store: ready.store,
        commands: Mutex::new(Some(commands)),
        thread: Mutex::new(Some(thread)),
    })
}

fn prepare(
    model: &Arc<Model>,
    params: &ContextParams,
    config: &EngineConfig,
    max_seq_per_batch: usize,
    commands: Receiver<Command>,
) -> Result<(Ready, DecodeLoop), LoadError> {
    let n_ctx_asked = params.n_ctx / config.n_seq;
    let fail = |err: llama::Error| LoadError::Context { n_ctx: n_ctx_asked, reason: err.to_string() };
    let mut context = Context::new(model.clone(), params).map_err(fail)?;
    // llama.cpp calls BERT a decoder; what it lacks is a memory to go on from.
    let generates = model.has_decoder() && context.has_memory();
    if !generates && !config.embeddings {
        return Err(model_error(config, ENCODER.to_owned()));
    }
    let n_ctx = context.n_ctx() / config.n_seq;
    let (layout, state_bytes_full) =
        if config.warmup && generates { learn(&mut context, n_ctx) } else { (Err(NOT_LEARNT.to_owned()), 0) };
    let layout = match beyond_original(model, config, context.n_ctx_seq()) {
        Some(reason) => Err(reason),
        None => layout,
    };
    let limits = Limits {
        n_ctx: n_ctx as usize,
        n_seq: config.n_seq as usize,
        n_batch: context.n_batch() as usize,
        prefill_chunk: (config.prefill_chunk as usize).max(1),
        n_ubatch: params.n_ubatch as usize,
        is_pooled: context.is_pooled(),
        max_seq_per_batch,
        restore: RestoreRules {
            layout: layout.clone(),
            can_step_back: !model.has_recurrent_state(),
            n_ctx,
            n_swa: model.n_swa(),
            scan: config.state_scan,
            // More do not read or copy faster.
            n_threads: params.n_threads_batch.clamp(1, 4) as usize,
        },
    };
    let probe = Probe::new(model.clone(), params, config.state_probe);
    let is_pooled = limits.is_pooled;
    let store = config.prefix_store.as_ref();
    let store = store.and_then(|store| stored::open(config, store, &context, &limits.restore));
    let stored =
        store.clone().map(|store| Stored { store, probe: Probe::new(model.clone(), params, config.state_probe) });
    let decode_loop = DecodeLoop::new(context, commands, limits, probe, stored);
    let counts = decode_loop.counts();
    Ok((
        Ready { n_ctx, is_pooled, generates, n_ubatch: params.n_ubatch, state_bytes_full, layout, counts, store },
        decode_loop,
    ))
}

const ENCODER: &str = "it is an encoder, which generates no text; for embeddings give --embeddings";

const NOT_LEARNT: &str = "the engine was loaded without a warm-up, in which the layout of state files is learnt";

/// Some models turn K by other factors in a context that is longer than the one they were first made for (LongRoPE,
/// arXiv:2402.13753; llama.cpp decides by what one sequence may have, which is the whole context where they share a pool). A
/// state file does not say by which; those that others write are for the shorter one.
fn beyond_original(model: &Model, config: &EngineConfig, n_ctx: u32) -> Option<String> {
    let architecture = model.metadata("general.architecture")?;
    let original: u32 =
        model.metadata(&format!("{architecture}.rope.scaling.original_context_length"))?.parse().ok()?;
    let is_beyond = n_ctx > original && {
        let has_both = |part: std::path::PathBuf| gguf::has_tensor(&part, "rope_factors_long.weight").unwrap_or(true);
        identity::parts_of(&config.model).into_iter().any(has_both)
    };
    is_beyond.then(|| {
        format!(
            "this model's K is computed otherwise in contexts of more than {original} tokens, and state files do not say for \
             which they are; a --ctx-size of at most {original} (with --kv-unified of all slots together) makes handoffs possible"
        )
    })
}

/// Runs two tokens through the model, which pages the weights in, and learns from their state what this model's state
/// files look like and how large one of a full context is.
fn learn(context: &mut Context, n_ctx: u32) -> (Result<Layout, String>, u64) {
    let seq = SeqId(0);
    let mut sizes = [0u64; 2];
    let token = context.model().vocab().bos().unwrap_or(Token(0));
    let mut layout = Err("the model could not evaluate a first token".to_owned());
    for (position, size) in sizes.iter_mut().enumerate().take(n_ctx.min(2) as usize) {
        let mut batch = Batch::new();
        batch.push(token, i32::try_from(position).unwrap_or(0), seq, true);
        if let Err(err) = context.decode(&mut batch, Vec::new()) {
            tracing::warn!("warm-up: {err}");
            break;
        }
        *size = context.state_size(seq);
        let tokens = vec![token; position + 1];
        layout = context
            .state_bytes(seq, &tokens)
            .map_err(|err| err.to_string())
            .and_then(|sample| Layout::learn(&sample, &facts(context)).map_err(|err| err.to_string()));
    }
    context.clear_seq(seq);
    let per_token = sizes[1].saturating_sub(sizes[0]);
    let full = sizes[0] + per_token * u64::from(n_ctx.saturating_sub(1)) + 4 * u64::from(n_ctx);
    (layout, full)
}

fn facts(context: &Context) -> ModelFacts {
    let model = context.model();
    ModelFacts {
        is_recurrent: model.is_recurrent(),
        is_hybrid: model.is_hybrid(),
        n_layer: model.n_layer(),
        n_swa: model.n_swa(),
        swa_chunked: model.metadata("general.architecture").as_deref() == Some("llama4"),
        native: llama::state_version(),
        n_streams: context.n_streams(),
    }
}

fn end_tokens(model: &Model) -> Vec<Token> {
    let vocab = model.vocab();
    let n_vocab = i32::try_from(vocab.n_tokens()).unwrap_or(0);
    (0..n_vocab).map(Token).filter(|&token| vocab.is_end(token)).collect()
}

fn model_info(
    config: &EngineConfig,
    model: &Model,
    has_chat_template: bool,
    device: String,
    ready: &Ready,
) -> ModelInfo {
    let vocab = model.vocab();
    ModelInfo {
        path: config.model.clone(),
        description: model.description(),
        architecture: model.metadata("general.architecture").unwrap_or_default(),
        file_type: model.file_type(),
        n_ctx: ready.n_ctx,
        n_slots: config.n_seq,
        generates: ready.generates,
        embeddings: config.embeddings.then_some(if ready.is_pooled {
            EmbeddingKind::Pooled
        } else {
            EmbeddingKind::Tokens
        }),
        n_ubatch: ready.n_ubatch,
        n_ctx_train: model.n_ctx_train(),
        n_vocab: vocab.n_tokens(),
        vocab_type: vocab.kind(),
        n_embd: model.n_embd(),
        n_params: model.n_params(),
        n_bytes: model.n_bytes(),
        n_swa: model.n_swa(),
        can_step_back: !model.has_recurrent_state(),
        has_chat_template,
        adds_bos: vocab.adds_bos(),
        device,
        state_bytes_full: ready.state_bytes_full,
        loaded_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()),
    }
}
