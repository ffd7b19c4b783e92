//! From arguments as typed to the settings of each layer. Refusals are decided here, before anything is loaded.

use std::path::PathBuf;
use std::time::Duration;

use crate::engine::{Device, Engine, EngineConfig};
use crate::hybrid::{Hybrid, HybridConfig, LineSink};
use crate::server::Backend;

use super::Failure;
use super::args::{FlashAttnArg, HybridArgs, ModelArgs, RefusedArgs, ServeArgs, Switch};

/// What `--device` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything in this process, on this device.
    Local(Device),
    /// Prompts by an external provider, decoding here.
    Hybrid,
}

impl Mode {
    pub fn parse(device: &str) -> Self {
        match device.to_ascii_lowercase().as_str() {
            "auto" => Mode::Local(Device::Auto),
            "cpu" | "none" => Mode::Local(Device::Cpu),
            "hrx" => Mode::Local(Device::Hrx),
            "hybrid" => Mode::Hybrid,
            _ => Mode::Local(Device::Named(device.to_owned())),
        }
    }

    /// The device that decodes.
    pub fn decode_device(&self) -> Device {
        match self {
            Mode::Local(device) => device.clone(),
            // HRX when the build and the machine have it, else the CPU: what Auto means, but for other accelerators.
            Mode::Hybrid if has_hrx() => Device::Hrx,
            Mode::Hybrid => Device::Cpu,
        }
    }
}

fn has_hrx() -> bool {
    cfg!(feature = "hrx") && crate::engine::list_devices().iter().any(|device| device.backend == "HRX")
}

/// The flags that cannot go with a mode, each with its reason. `Err` names the flag.
pub fn refuse(mode: &Mode, args: &ServeArgs) -> Result<(), Failure> {
    let hybrid = *mode == Mode::Hybrid;
    if hybrid && args.print_backend {
        return Err(Failure::new(5, "--print-backend: the hybrid device needs serve: its backend is known only there"));
    }
    if let Some(flag) = first_refused(&args.refused) {
        let reason = if hybrid { "cannot be used with --device hybrid" } else { "is not supported by onebit" };
        let way_out = match flag {
            "--mmproj" => ": models read text only here; leave it out",
            "--rerank" | "--reranking" => ": /v1/rerank is not there yet",
            "--embed" => "; --embeddings serves embeddings, without hybrid",
            _ => "; leave it out",
        };
        return Err(Failure::usage(format!("{flag} {reason}{way_out}")));
    }
    if hybrid && args.endpoints.embeddings {
        return Err(Failure::usage("--embedding cannot be used with --device hybrid"));
    }
    if hybrid && args.parallel > 1 {
        return Err(Failure::usage(format!(
            "--parallel {} cannot be used with --device hybrid, which has one slot: leave it at 1",
            args.parallel
        )));
    }
    refuse_without_flash(mode, &args.model)
}

/// State files hold V as rows, which is how the cache is laid out with flash attention only.
pub fn refuse_without_flash(mode: &Mode, args: &ModelArgs) -> Result<(), Failure> {
    if *mode == Mode::Hybrid && args.flash_attn == FlashAttnArg::Off {
        return Err(Failure::usage("--flash-attn off cannot be used with --device hybrid: state files need it on"));
    }
    Ok(())
}

fn first_refused(args: &RefusedArgs) -> Option<&'static str> {
    let given = [
        (args.mtp, "--mtp"),
        (args.dflash, "--dflash"),
        (args.mmproj.is_some(), "--mmproj"),
        (args.moe_slots.is_some(), "--moe-slots"),
        (args.embed, "--embed"),
        (args.rerank, "--rerank"),
        (args.reranking, "--reranking"),
        (args.pm, "--pm"),
    ];
    given.into_iter().find(|(given, _)| *given).map(|(_, flag)| flag)
}

pub fn engine_config(
    mode: &Mode,
    args: &ModelArgs,
    hybrid: &HybridArgs,
    parallel: u32,
) -> Result<EngineConfig, Failure> {
    let mut config = EngineConfig::new(&args.model);
    config.device = mode.decode_device();
    config.n_ctx = args.ctx_size;
    config.n_seq = parallel;
    config.kv_unified = args.kv_unified;
    config.n_batch = args.batch_size;
    config.prefill_chunk = args.prefill_chunk;
    config.n_ubatch = args.ubatch_size;
    config.n_threads = args.threads;
    config.n_threads_batch = args.threads_batch;
    config.cache_type_k = args.cache_type_k;
    config.cache_type_v = args.cache_type_v;
    // `auto` is for llama.cpp to settle; a state file is not.
    config.flash_attention = if *mode == Mode::Hybrid { FlashAttnArg::On.into() } else { args.flash_attn.into() };
    config.n_gpu_layers = args.gpu_layers;
    config.rpc_servers.clone_from(&args.rpc);
    config.chat_template = chat_template(args)?;
    config.state_scan = hybrid.state_scan == Switch::On;
    config.state_probe = Some(hybrid.state_probe).filter(|&every| every > 0);
    Ok(config)
}

fn chat_template(args: &ModelArgs) -> Result<Option<String>, Failure> {
    let Some(path) = &args.chat_template_file else {
        return args.chat_template.as_deref().map(template_source).transpose();
    };
    let text = std::fs::read_to_string(path);
    text.map(Some).map_err(|err| Failure::usage(format!("--chat-template-file {}: {err}", path.display())))
}

/// The one name that llama.cpp's `common` knows for Jinja is chatml; others belong to its older templates, and would render to
/// themselves.
fn template_source(text: &str) -> Result<String, Failure> {
    if text == "chatml" || text.contains('{') {
        return Ok(text.to_owned());
    }
    Err(Failure::usage(format!(
        "--chat-template {text}: expected `chatml` or a Jinja template (or --chat-template-file)"
    )))
}

pub fn hybrid_config(model: &ModelArgs, args: &HybridArgs) -> Result<HybridConfig, Failure> {
    if let Some(folder) = args.slot_dir.as_deref().filter(|folder| !folder.is_dir()) {
        let reason = if folder.exists() { "Not a directory" } else { "No such file or directory" };
        return Err(Failure::new(1, format!("cannot use the slot directory {}: {reason}", folder.display())));
    }
    let seconds = args.prefill_timeout;
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
    Ok(HybridConfig {
        provider: args.prefill_provider.clone().filter(|path| !path.as_os_str().is_empty()),
        mode: args.prefill_mode.into(),
        elfs: args.prefill_elfs.clone().filter(|path| !path.as_os_str().is_empty()),
        model: model.model.clone(),
        timeout: timeout
            .ok_or_else(|| Failure::usage(format!("--prefill-timeout {seconds}: give a number of seconds above 0")))?,
        slot_dir: args.slot_dir.clone(),
        supervisor: supervisor(),
        report: LineSink::stderr(),
        handoff: args.handoff.into(),
        min_tokens: args.handoff_min_tokens,
        prefill_ahead: args.prefill_ahead,
    })
}

/// Who answers requests.
pub fn backend(engine: &Engine, hybrid: Option<&Hybrid>) -> Backend {
    match hybrid {
        Some(hybrid) => Backend::Hybrid(hybrid.clone(), engine.clone()),
        None => Backend::Local(engine.clone()),
    }
}

/// This very program, which watches over the provider in a process of its own (hybrid::supervisor). Linux's own name for it
/// goes on working when the file is replaced by an update.
pub(super) fn supervisor() -> Option<PathBuf> {
    let this = PathBuf::from("/proc/self/exe");
    if this.exists() { Some(this) } else { std::env::current_exe().ok() }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::{Cli, Command};
    use super::*;

    fn refusal(flags: &[&str]) -> Option<(u8, String)> {
        let args = ["onebit", "serve", "-m", "x.gguf"].iter().chain(flags);
        let Some(Command::Serve(serve)) = Cli::try_parse_from(args).unwrap().command else { panic!("not serve") };
        refuse(&Mode::parse(&serve.model.device), &serve).err().map(|failure| (failure.code, failure.message))
    }

    #[test]
    fn every_refused_flag_is_named() {
        for flags in [
            &["--mtp"][..],
            &["--dflash"],
            &["--mmproj", "x"],
            &["--moe-slots", "4"],
            &["--parallel", "2"],
            &["--embed"],
            &["--rerank"],
            &["--embedding"],
            &["--reranking"],
            &["--pm"],
            &["--flash-attn", "off"],
        ] {
            let with_hybrid = [&["--device", "hybrid"], flags].concat();
            let (code, message) = refusal(&with_hybrid).expect("refused");
            assert_eq!(code, 2, "{flags:?}");
            assert!(message.starts_with(flags[0]), "{message}");
        }
        assert_eq!(refusal(&["--device", "hybrid"]), None);
        assert_eq!(refusal(&["--parallel", "2"]), None);
        assert_eq!(refusal(&["--device", "hybrid", "--print-backend"]).map(|(code, _)| code), Some(5));
    }

    #[test]
    fn device_names() {
        assert_eq!(Mode::parse("HYBRID"), Mode::Hybrid);
        assert_eq!(Mode::parse("cpu"), Mode::Local(Device::Cpu));
        assert_eq!(Mode::parse("Vulkan0"), Mode::Local(Device::Named("Vulkan0".into())));
    }
}
