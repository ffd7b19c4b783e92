//! Start-up of llama.cpp, once per process, and facts about the build.

use std::sync::OnceLock;

use super::log;
use super::strings::copy_str;

/// Proof that llama.cpp was started in this process. Cheap to copy; the run-time stays up until the process ends,
/// because other users of ggml in the process may hold on to it.
#[derive(Clone, Copy, Debug)]
pub struct Backend(());

impl Backend {
    /// Starts llama.cpp on first use.
    pub fn init() -> Self {
        static STARTED: OnceLock<()> = OnceLock::new();
        STARTED.get_or_init(|| {
            log::install();
            // SAFETY: no preconditions; OnceLock makes it happen once, before any other call of this layer.
            unsafe { llama_sys::onebit_quiet_common_log() };
            // SAFETY: as above.
            unsafe { llama_sys::llama_backend_init() };
            if std::env::var_os("ONEBIT_ATTENTION").is_none_or(|kernel| kernel != "ggml") {
                // SAFETY: as above; the registry was filled by the call before.
                unsafe { llama_sys::onebit_attention_register() };
            }
        });
        Self(())
    }
}

/// llama.cpp's build number (`b11434`); 0 when the source does not know it.
pub fn build_number() -> i32 {
    // SAFETY: no preconditions; returns a constant.
    unsafe { llama_sys::onebit_llama_build_number() }
}

/// Version of the sequence-state files that this build reads and writes, from its headers.
pub fn state_version() -> u32 {
    llama_sys::LLAMA_STATE_SEQ_VERSION
}

/// Which llama.cpp tree was built.
pub fn source() -> &'static str {
    llama_sys::SOURCE
}

/// The license texts of llama.cpp and of what it bundles.
pub fn licenses() -> &'static str {
    llama_sys::LICENSES
}

/// CPU features that ggml uses here, as `llama_print_system_info` prints them.
pub fn system_info() -> String {
    Backend::init();
    // SAFETY: returns a pointer to a static buffer; the registry it reads was filled by Backend::init.
    unsafe { copy_str(llama_sys::llama_print_system_info()) }.unwrap_or_default()
}

/// Threads that llama.cpp's own tools would use on this machine: one for each physical core.
pub fn cpu_threads() -> u32 {
    // SAFETY: no preconditions; reads /proc and sysfs.
    u32::try_from(unsafe { llama_sys::onebit_cpu_threads() }).unwrap_or(1).max(1)
}

/// Gives memory that was freed back to the system. Loading a model leaves megabytes of parsed metadata behind, in an arena
/// that other threads do not use again.
pub fn release_free_memory() {
    // SAFETY: no preconditions; glibc's malloc_trim may run beside other threads' allocations.
    unsafe { llama_sys::onebit_release_free_memory() };
}
