//! ggml's device registry.

use std::ffi::CString;

use llama_sys::{
    GGML_BACKEND_DEVICE_TYPE_ACCEL, GGML_BACKEND_DEVICE_TYPE_CPU, GGML_BACKEND_DEVICE_TYPE_GPU,
    GGML_BACKEND_DEVICE_TYPE_IGPU, ggml_backend_dev_t,
};

use super::strings::copy_str;
use super::{Backend, Error};

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU with system memory.
    Cpu,
    /// A GPU with memory of its own.
    Gpu,
    /// A GPU that shares the system memory.
    IntegratedGpu,
    /// A helper of the CPU (BLAS, the shim's attention kernel), never chosen by itself.
    Accelerator,
    /// Something newer than this list.
    Other,
}

/// A device that ggml found. Devices live as long as the process.
#[derive(Clone, Debug)]
pub struct Device {
    raw: ggml_backend_dev_t,
    /// ggml's name, such as `CPU`, `HRX0`, `Vulkan0`.
    pub name: String,
    /// What the driver calls it.
    pub description: String,
    /// What it is.
    pub kind: DeviceKind,
    /// The backend that it belongs to, such as `HRX`.
    pub backend: String,
    /// Free and total memory in bytes, as the backend reports them (0 when it does not).
    pub memory: (u64, u64),
}

// SAFETY: ggml's devices are registered once and live until the process ends; the calls made on them here only read.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// ggml aborts the process when nobody answers at an endpoint.
fn require_listener(endpoint: &str) -> Result<(), Error> {
    use std::net::{TcpStream, ToSocketAddrs};
    const LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
    let bad = |reason: String| Error::Invalid(format!("no ggml RPC server at {endpoint}: {reason}"));
    let mut addresses = endpoint.to_socket_addrs().map_err(|_| bad("expected HOST:PORT".to_owned()))?;
    let address = addresses.next().ok_or_else(|| bad("the host has no address".to_owned()))?;
    TcpStream::connect_timeout(&address, LIMIT).map(drop).map_err(|err| bad(err.to_string()))
}

impl Device {
    /// Every device of this build and machine.
    pub fn all() -> Vec<Device> {
        Backend::init();
        // SAFETY: the registry was filled by Backend::init; indices below the count are valid.
        unsafe {
            let count = llama_sys::ggml_backend_dev_count();
            (0..count).map(|index| Self::from_raw(llama_sys::ggml_backend_dev_get(index))).collect()
        }
    }

    /// The device of that name, upper and lower case being the same.
    pub fn by_name(name: &str) -> Option<Device> {
        Self::all().into_iter().find(|device| device.name.eq_ignore_ascii_case(name))
    }

    /// Adds the devices of a ggml RPC server at `host:port` to the registry.
    pub fn add_rpc_server(endpoint: &str) -> Result<(), Error> {
        require_listener(endpoint)?;
        Backend::init();
        let endpoint = CString::new(endpoint).map_err(|_| Error::Nul)?;
        // SAFETY: the endpoint outlives the call; the shim answers with a status.
        super::error::check(|err| unsafe { llama_sys::onebit_rpc_add_server(endpoint.as_ptr(), err) })
    }

    /// The handle, for the load parameters.
    pub(super) fn as_raw(&self) -> ggml_backend_dev_t {
        self.raw
    }

    /// # Safety
    ///
    /// `raw` is a registered device.
    unsafe fn from_raw(raw: ggml_backend_dev_t) -> Self {
        // SAFETY: the caller's promise; the strings are static in the backend.
        unsafe {
            let (mut free, mut total) = (0, 0);
            llama_sys::ggml_backend_dev_memory(raw, &raw mut free, &raw mut total);
            let registry = llama_sys::ggml_backend_dev_backend_reg(raw);
            Self {
                raw,
                name: copy_str(llama_sys::ggml_backend_dev_name(raw)).unwrap_or_default(),
                description: copy_str(llama_sys::ggml_backend_dev_description(raw)).unwrap_or_default(),
                kind: kind(llama_sys::ggml_backend_dev_type(raw)),
                backend: copy_str(llama_sys::ggml_backend_reg_name(registry)).unwrap_or_default(),
                memory: (free as u64, total as u64),
            }
        }
    }
}

fn kind(raw: llama_sys::ggml_backend_dev_type) -> DeviceKind {
    match raw {
        GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
        GGML_BACKEND_DEVICE_TYPE_GPU => DeviceKind::Gpu,
        GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::IntegratedGpu,
        GGML_BACKEND_DEVICE_TYPE_ACCEL => DeviceKind::Accelerator,
        _ => DeviceKind::Other,
    }
}
