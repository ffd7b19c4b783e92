//! bindgen over llama.cpp's public headers and the shim. Layout checks stay on: they compare Rust with the C compiler.

use std::path::Path;

use crate::Result;
use crate::source::Source;

pub fn generate(manifest_dir: &Path, source: &Source, out_dir: &Path) -> Result<()> {
    let bindings = bindgen::Builder::default()
        .header(manifest_dir.join("shim/shim.h").display().to_string())
        .clang_arg(format!("-I{}", source.dir.join("include").display()))
        .clang_arg(format!("-I{}", source.dir.join("ggml/include").display()))
        .allowlist_function("llama_.*|onebit_.*")
        .allowlist_function(
            "ggml_backend_(dev|reg|buffer|buft|load|unload|get|set|supports|name).*|ggml_backend_(cpu|init).*",
        )
        .allowlist_function("ggml_(init|free|new_tensor.*|set_name|nbytes|get_data|tensor_overhead|log_set|time_us)")
        .allowlist_function("ggml_(type_name|type_size|blck_size|row_size|is_quantized)")
        .allowlist_function("gguf_.*")
        .allowlist_type("llama_.*|ggml_type|ggml_status|ggml_log_level|ggml_backend_dev_.*|gguf_.*|onebit_.*")
        .allowlist_var("LLAMA_.*|GGML_(MAX|DEFAULT|ROPE).*|GGUF_.*|ONEBIT_.*")
        // FILE's layout is the C library's business; these are the only users of it.
        .blocklist_function(".*_file_ptr|.*gguf_write_to_file_ptr|.*gguf_init_from_file_ptr")
        .opaque_type("FILE|_IO_FILE")
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .generate()
        .map_err(|err| {
            format!("bindgen cannot read llama.h ({err}): is `libclang-dev` (with clang's own headers) installed?")
        })?;
    let path = out_dir.join("bindings.rs");
    bindings.write_to_file(&path).map_err(|err| format!("cannot write {}: {err}", path.display()))
}
