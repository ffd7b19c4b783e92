//! The shim, and the link lines.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::cmake::Tree;
use crate::source::Source;

/// llama.cpp's archives, each before what it needs.
const LIBRARIES: [&str; 9] = [
    "llama-common",
    "llama-common-base",
    "cpp-httplib",
    "llama",
    "ggml",
    "ggml-rpc",
    "ggml-vulkan",
    "ggml-cpu",
    "ggml-base",
];

pub fn compile_shim(manifest_dir: &Path, source: &Source, tree: &Tree) -> Result<()> {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).debug(false).warnings(true);
    for include in ["include", "ggml/include", "ggml/src", "common", "vendor", "src"] {
        // As system headers: llama.cpp's warnings are not ours.
        build.flag(format!("-isystem{}", source.dir.join(include).display()));
    }
    if !openmp_libraries(&cmake_cache(tree)).is_empty() {
        build.flag_if_supported("-fopenmp");
    }
    let file = |name: &str| manifest_dir.join("shim").join(name);
    let mut vectors = build.clone();
    // 3 unrolls the loops over rows, which keeps their sums in registers.
    vectors.opt_level(3);
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        vectors.flag("-mavx2").flag("-mfma").flag("-mf16c");
    }
    vectors.file(file("attention_avx2.cpp"));
    for name in ["shim.cpp", "state.cpp", "chat.cpp", "attention.cpp"] {
        build.file(file(name));
    }
    build
        .try_compile("onebit_shim")
        .and_then(|()| vectors.try_compile("onebit_vectors"))
        .map_err(|err| format!("the shim over llama.cpp's common library does not compile: {err}"))
}

fn cmake_cache(tree: &Tree) -> String {
    std::fs::read_to_string(tree.dir.join("CMakeCache.txt")).unwrap_or_default()
}

pub fn emit(tree: &Tree) -> Result<()> {
    let (prefix, suffix, kind) = if tree.shared { ("lib", ".so", "dylib") } else { ("lib", ".a", "static") };
    let mut dirs: Vec<PathBuf> = Vec::new();
    for name in LIBRARIES {
        if let Some(dir) = find(&tree.dir, &format!("{prefix}{name}{suffix}")) {
            println!("cargo::rustc-link-lib={kind}={name}");
            dirs.push(dir);
        } else if let Some(dir) = find(&tree.dir, &format!("lib{name}.a")) {
            // llama-common-base and cpp-httplib stay archives in a shared build.
            println!("cargo::rustc-link-lib=static={name}");
            dirs.push(dir);
        }
    }
    if dirs.is_empty() {
        return Err(format!("no llama.cpp library below {}: remove that folder and build again", tree.dir.display()));
    }
    dirs.sort();
    dirs.dedup();
    for dir in &dirs {
        println!("cargo::rustc-link-search=native={}", dir.display());
    }
    if tree.shared {
        // The root build.rs makes run-time paths of these.
        let joined =
            std::env::join_paths(&dirs).map_err(|err| format!("a library folder's name cannot be passed on: {err}"))?;
        println!("cargo::metadata=libdirs={}", joined.display());
    }
    system_libraries(tree);
    Ok(())
}

fn system_libraries(tree: &Tree) {
    if cfg!(target_os = "macos") {
        println!("cargo::rustc-link-lib=c++");
        for framework in ["Foundation", "Accelerate", "Metal", "MetalKit"] {
            println!("cargo::rustc-link-lib=framework={framework}");
        }
        return;
    }
    println!("cargo::rustc-link-lib=stdc++");
    for library in openmp_libraries(&cmake_cache(tree)) {
        println!("cargo::rustc-link-lib={library}");
    }
    if find(&tree.dir, "libggml-vulkan.a").is_some() {
        println!("cargo::rustc-link-lib=vulkan");
    }
}

/// The OpenMP run-time that cmake's compiler wants (`gomp` for GCC, `omp` for clang), if it found one.
fn openmp_libraries(cache: &str) -> Vec<&str> {
    let line = cache.lines().find_map(|line| line.strip_prefix("OpenMP_CXX_LIB_NAMES:STRING="));
    line.into_iter().flat_map(|names| names.split(';')).filter(|name| !name.is_empty() && *name != "NOTFOUND").collect()
}

/// The folder below `dir` that holds `file`. The build tree is a few hundred folders; object folders are skipped.
fn find(dir: &Path, file: &str) -> Option<PathBuf> {
    if dir.join(file).is_file() {
        return Some(dir.to_owned());
    }
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    entries
        .filter(|entry| entry.file_name() != "CMakeFiles" && entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .find_map(|entry| find(&entry.path(), file))
}
