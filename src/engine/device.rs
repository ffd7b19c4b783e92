//! Which devices a model goes to.

use crate::llama::{self, DeviceKind};

use super::Device;

/// A device of this build and machine, as `onebit devices` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    /// ggml's name.
    pub name: String,
    /// What the driver calls it.
    pub description: String,
    /// The backend that it belongs to.
    pub backend: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Free and total memory in bytes; 0 when unknown.
    pub memory: (u64, u64),
}

/// Every device of this build and machine that a model can go to.
pub fn list_devices() -> Vec<DeviceSummary> {
    all().iter().map(summary).collect()
}

/// Helpers of the CPU take part wherever it does; no model goes to one.
fn all() -> Vec<llama::Device> {
    llama::Device::all().into_iter().filter(|device| device.kind != DeviceKind::Accelerator).collect()
}

/// Name of the device that `wanted` stands for on this machine, such as `CPU` or `HRX0`.
pub fn resolve_device(wanted: &Device) -> Result<String, String> {
    select(wanted, 1).map(|selection| selection.name)
}

fn summary(device: &llama::Device) -> DeviceSummary {
    DeviceSummary {
        name: device.name.clone(),
        description: device.description.clone(),
        backend: device.backend.clone(),
        kind: device.kind,
        memory: device.memory,
    }
}

/// What was chosen: the devices for the weights (none means the CPU), the name to show, and a limit.
#[derive(Debug)]
pub(super) struct Selection {
    pub devices: Vec<llama::Device>,
    pub name: String,
    pub max_seq_per_batch: usize,
}

/// Finds the devices that `wanted` names on this machine.
pub(super) fn select(wanted: &Device, n_seq: usize) -> Result<Selection, String> {
    let devices = all();
    let summaries: Vec<_> = devices.iter().map(summary).collect();
    let chosen = choose(wanted, &summaries)?;
    let name = chosen.map_or_else(|| "CPU".to_owned(), |index| summaries[index].name.clone());
    // HRX runs one sequence per batch.
    let one_by_one = chosen.is_some_and(|index| summaries[index].backend == "HRX");
    Ok(Selection {
        devices: chosen.map(|index| devices[index].clone()).into_iter().collect(),
        name,
        max_seq_per_batch: if one_by_one { 1 } else { n_seq },
    })
}

/// The index of the device to use; `None` for the CPU.
fn choose(wanted: &Device, devices: &[DeviceSummary]) -> Result<Option<usize>, String> {
    let is_gpu = |device: &DeviceSummary| matches!(device.kind, DeviceKind::Gpu | DeviceKind::IntegratedGpu);
    let hrx = devices.iter().position(|device| device.backend == "HRX");
    match wanted {
        Device::Cpu => Ok(None),
        Device::Hrx => hrx.map(Some).ok_or_else(|| no_hrx(devices)),
        Device::Auto => Ok(hrx.or_else(|| devices.iter().position(is_gpu))),
        Device::Named(name) => match devices.iter().position(|device| device.name.eq_ignore_ascii_case(name)) {
            Some(index) if devices[index].kind == DeviceKind::Cpu => Ok(None),
            Some(index) => Ok(Some(index)),
            None => Err(format!("there is no device `{name}` here; `onebit devices` lists {}", names(devices))),
        },
    }
}

fn no_hrx(devices: &[DeviceSummary]) -> String {
    if cfg!(feature = "hrx") {
        format!(
            "no HRX device was found (devices here: {}); see docs/hrx.md for the run-time library it needs",
            names(devices)
        )
    } else {
        "this build has no HRX backend: build with `--features hrx` (docs/hrx.md), or use --device cpu".to_owned()
    }
}

fn names(devices: &[DeviceSummary]) -> String {
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, backend: &str, kind: DeviceKind) -> DeviceSummary {
        DeviceSummary { name: name.into(), description: String::new(), backend: backend.into(), kind, memory: (0, 0) }
    }

    #[test]
    fn hrx_comes_first_then_a_gpu_then_the_cpu() {
        let cpu = device("CPU", "CPU", DeviceKind::Cpu);
        let vulkan = device("Vulkan0", "Vulkan", DeviceKind::Gpu);
        let hrx = device("HRX0", "HRX", DeviceKind::IntegratedGpu);
        let all = [cpu.clone(), vulkan.clone(), hrx];
        assert_eq!(choose(&Device::Auto, &all), Ok(Some(2)));
        assert_eq!(choose(&Device::Hrx, &all), Ok(Some(2)));
        assert_eq!(choose(&Device::Auto, &[cpu.clone(), vulkan]), Ok(Some(1)));
        assert_eq!(choose(&Device::Auto, std::slice::from_ref(&cpu)), Ok(None));
        assert_eq!(choose(&Device::Cpu, &all), Ok(None));
        assert_eq!(choose(&Device::Named("vulkan0".into()), &all), Ok(Some(1)));
        assert_eq!(choose(&Device::Named("cpu".into()), &all), Ok(None));
        let missing = choose(&Device::Named("HRX7".into()), &all).unwrap_err();
        assert!(missing.contains("HRX7") && missing.contains("CPU, Vulkan0, HRX0"), "{missing}");
        assert!(choose(&Device::Hrx, &[cpu]).unwrap_err().contains("docs/hrx.md"));
    }
}
