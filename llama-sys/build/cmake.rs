//! The cmake build of llama.cpp: always optimised, in one folder that every cargo profile shares.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::source::Source;
use crate::{Result, env, user_env};

/// The cargo features of this crate, as the build script sees them.
pub struct Features {
    pub rpc: bool,
    pub hrx: bool,
    pub vulkan: bool,
}

impl Features {
    pub fn from_env() -> Self {
        let on = |name: &str| std::env::var_os(name).is_some();
        Self { rpc: on("CARGO_FEATURE_RPC"), hrx: on("CARGO_FEATURE_HRX"), vulkan: on("CARGO_FEATURE_VULKAN") }
    }

    /// cmake only warns about a switch that the tree does not know, and the build would lack what was asked for.
    pub fn check(&self, source: &Source) -> Result<()> {
        if self.hrx && !source.dir.join("ggml/src/ggml-hrx").is_dir() {
            return Err(format!(
                "the feature `hrx` needs a llama.cpp tree with AMD's HRX backend, and {} has none: put a checkout of the fork \
                 that vendor/PINS.toml names at vendor/llama.cpp, or name it in ONEBIT_LLAMA_SRC (docs/hrx.md)",
                source.describe()
            ));
        }
        Ok(())
    }
}

/// What a finished build left behind.
pub struct Tree {
    /// The folder with `CMakeCache.txt`.
    pub dir: PathBuf,
    /// Shared libraries instead of archives (HRX's run-time exists only shared).
    pub shared: bool,
}

pub fn build(source: &Source, features: &Features, out_dir: &Path) -> Result<Tree> {
    let defines = defines(source, features);
    let flags = compiler_flags();
    let dir = shared_dir(source, &defines, &flags, out_dir)?;
    // Two cargo profiles (or cargo and an editor) may arrive here at once; one builds, the other finds it done.
    let lock =
        std::fs::File::create(dir.join("lock")).map_err(|err| format!("cannot write {}: {err}", dir.display()))?;
    lock.lock().map_err(|err| format!("cannot lock {}: {err}", dir.display()))?;

    let mut config = cmake::Config::new(&source.dir);
    // cmake's own Release flags, not cargo's: a dev build of onebit still decodes at full speed.
    config.profile("Release").no_default_flags(true).out_dir(&dir);
    for (name, value) in &defines {
        config.define(name, value);
    }
    for flag in flags {
        config.cflag(flag).cxxflag(flag);
    }
    // llama-common links llama, which links ggml and every backend: one target builds all that we link.
    config.build_target("llama-common").build();
    Ok(Tree { dir: dir.join("build"), shared: features.hrx })
}

/// Sections of their own let the linker leave out what nobody calls (1 MB of 12).
///
/// ggml's AMX kernels crash in builds for CPUs that have AMX: GCC drops the stores to the tile configuration, whose address
/// alone it sees passed on, and threads other than the first lack the kernel's permission (llama.cpp issue 20824, open at
/// our pin). `-march=native` would switch them on, so they are switched off by name.
fn compiler_flags() -> Vec<&'static str> {
    let mut compiler = cc::Build::new();
    compiler.cpp(true).cargo_metadata(false);
    let mut flags = vec!["-ffunction-sections", "-fdata-sections"];
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        flags.extend(["-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"]);
    }
    flags.into_iter().filter(|flag| compiler.is_flag_supported(flag).unwrap_or(false)).collect()
}

fn defines(source: &Source, features: &Features) -> Vec<(String, String)> {
    let mut defines = base_defines(source);
    if features.rpc {
        defines.push(define("GGML_RPC", "ON"));
    }
    if features.vulkan {
        defines.push(define("GGML_VULKAN", "ON"));
    }
    if features.hrx {
        defines.extend(hrx_defines());
    } else {
        defines.push(define("BUILD_SHARED_LIBS", "OFF"));
    }
    defines
}

fn base_defines(source: &Source) -> Vec<(String, String)> {
    let mut defines = vec![
        define("CMAKE_POSITION_INDEPENDENT_CODE", "ON"),
        define("LLAMA_BUILD_COMMON", "ON"),
        define("LLAMA_BUILD_TESTS", "OFF"),
        define("LLAMA_BUILD_EXAMPLES", "OFF"),
        define("LLAMA_BUILD_TOOLS", "OFF"),
        define("LLAMA_BUILD_SERVER", "OFF"),
        define("LLAMA_BUILD_APP", "OFF"),
        define("LLAMA_CURL", "OFF"),
        define("LLAMA_OPENSSL", "OFF"),
    ];
    if let Some(number) = source.build_number {
        // A registry folder is no git checkout; without these, cmake would ask whatever repository lies above it.
        defines.push(define("LLAMA_BUILD_NUMBER", &number.to_string()));
        defines.push(define("LLAMA_BUILD_COMMIT", "release"));
    }
    if user_env("ONEBIT_PORTABLE").is_some_and(|value| value != "0") {
        // x86-64-v3 is what every x86 CPU since about 2015 runs; other CPUs get their baseline.
        defines.push(define("GGML_NATIVE", "OFF"));
    }
    defines
}

/// HRX: AMD's run-time. The variables are those that the fork's own CMake files read.
fn hrx_defines() -> Vec<(String, String)> {
    let mut defines = vec![
        define("GGML_HRX", "ON"),
        define("BUILD_SHARED_LIBS", "ON"),
        define("GGML_HIP", "OFF"),
        define("GGML_CUDA", "OFF"),
        define("GGML_VULKAN", "OFF"),
    ];
    for name in
        ["HRX_SOURCE_DIR", "GGML_HRX_AMDGPU_TARGETS", "GGML_HRX_ROCM_PATH", "CMAKE_C_COMPILER", "CMAKE_CXX_COMPILER"]
    {
        if let Some(value) = user_env(name) {
            defines.push(define(name, &value));
        }
    }
    defines
}

fn define(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// `<target>/llama.cpp/<key>`: outside cargo's per-profile folders, so that dev, release and clippy share one compile.
/// `ONEBIT_LLAMA_BUILD_DIR` names a folder in place of `<target>/llama.cpp`, for checkouts that share it. The key covers all that changes the result; the source's own edits are cmake's business.
fn shared_dir(source: &Source, defines: &[(String, String)], flags: &[&str], out_dir: &Path) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    source.dir.hash(&mut hasher);
    defines.hash(&mut hasher);
    flags.hash(&mut hasher);
    for name in ["TARGET", "HOST"] {
        env(name)?.hash(&mut hasher);
    }
    for name in ["CC", "CXX", "CFLAGS", "CXXFLAGS"] {
        user_env(name).hash(&mut hasher);
    }
    // OUT_DIR is <target>/<profile>/build/<package>-<hash>/out.
    let base = match user_env("ONEBIT_LLAMA_BUILD_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => out_dir.ancestors().nth(4).ok_or("OUT_DIR is too short")?.join("llama.cpp"),
    };
    let dir = base.join(format!("{:016x}", hasher.finish()));
    std::fs::create_dir_all(&dir).map_err(|err| format!("cannot make {}: {err}", dir.display()))?;
    Ok(dir)
}
