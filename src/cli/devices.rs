//! `onebit devices`.

use std::fmt::Write as _;

use crate::engine::{DeviceSummary, list_devices};
use crate::llama::DeviceKind;

use super::args::DevicesArgs;
use super::{Failure, hrx, print};

pub(super) fn main(args: &DevicesArgs) -> Result<(), Failure> {
    let hrx_library = hrx::prepare(args.hrx_libhsa.as_deref());
    for endpoint in &args.rpc {
        crate::llama::Device::add_rpc_server(endpoint).map_err(|err| Failure::new(1, err.to_string()))?;
    }
    let devices = list_devices();
    print(&render(&devices, &missing(&devices, hrx_library)))
}

fn render(devices: &[DeviceSummary], missing: &[String]) -> String {
    let mut text = format!("{:<10} {:<8} {:<16} {:>10}  {}\n", "DEVICE", "BACKEND", "KIND", "MEMORY", "DESCRIPTION");
    for device in devices {
        let memory = match device.memory.1 {
            0 => "-".to_owned(),
            bytes => format!("{:.1} GiB", gib(bytes)),
        };
        let _ = writeln!(
            text,
            "{:<10} {:<8} {:<16} {memory:>10}  {}",
            device.name,
            device.backend,
            kind(device.kind),
            device.description
        );
    }
    for line in missing {
        let _ = writeln!(text, "not here: {line}");
    }
    let _ = writeln!(text, "CPU features: {}", crate::llama::system_info().trim());
    text
}

#[allow(clippy::cast_precision_loss)] // shown with one decimal
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Gpu => "gpu",
        DeviceKind::IntegratedGpu => "integrated gpu",
        DeviceKind::Accelerator => "cpu helper",
        DeviceKind::Other => "other",
    }
}

/// Backends that could be here and are not, with the reason.
fn missing(devices: &[DeviceSummary], hrx_library: Result<Option<std::path::PathBuf>, String>) -> Vec<String> {
    let has = |backend: &str| devices.iter().any(|device| device.backend == backend);
    let mut missing = Vec::new();
    match hrx_library {
        _ if has("HRX") => {}
        Ok(None) => missing.push("HRX: this build was made without the feature `hrx` (docs/hrx.md)".to_owned()),
        Err(reason) => missing.push(format!("HRX: {reason}")),
        Ok(Some(path)) => {
            missing.push(format!("HRX: {} loads, but the run-time found no supported GPU", path.display()));
        }
    }
    if !has("Vulkan") {
        missing.push(match cfg!(feature = "vulkan") {
            true => "Vulkan: no device, or no driver for it, was found".to_owned(),
            false => "Vulkan: this build was made without the feature `vulkan`".to_owned(),
        });
    }
    if !cfg!(feature = "rpc") {
        missing.push("RPC: this build was made without the feature `rpc`".to_owned());
    }
    missing
}
