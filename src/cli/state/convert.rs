//! `onebit state convert`.

use std::fs::Permissions;
use std::io::{BufWriter, ErrorKind, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::state::{self, Layout};

use super::super::{Failure, print, require_replaceable};
use super::{CacheArgs, StateFile, layout, load, told};

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// State file to read
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// State file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// GGUF file of the model that the state is for
    #[arg(short, long, value_name = "FILE", env = "ONEBIT_MODEL")]
    model: PathBuf,

    #[command(flatten)]
    cache: CacheArgs,

    /// Replace OUT if it exists
    #[arg(short, long)]
    force: bool,
}

pub(super) fn main(args: &ConvertArgs) -> Result<(), Failure> {
    let mut file = StateFile::open(&args.input)?;
    if !args.force && args.output.symlink_metadata().is_ok() {
        return Err(exists(&args.output));
    }
    require_replaceable(&args.output)?;
    let engine = load(&args.model, &args.cache)?;
    let layout = layout(&engine)?;
    let header = state::read_header(&mut file.reader, file.len).map_err(|error| file.bad(&error))?;
    file.reader.rewind().map_err(|error| file.fail(error))?;
    let n_bytes = write(&mut file, header.version, layout, args)?;
    let (output, from, to) = (args.output.display(), header.version, layout.native);
    print(&if from == to {
        format!("{output}: {n_bytes} bytes, copied: it is of state version {to} already\n")
    } else {
        format!("{output}: {n_bytes} bytes, state version {from} rewritten as {to}\n")
    })
}

/// Under a temporary name beside OUT, and renamed when it is complete.
fn write(file: &mut StateFile, from: u32, layout: &Layout, args: &ConvertArgs) -> Result<u64, Failure> {
    let out = &args.output;
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot_write = |error: std::io::Error| Failure::new(1, format!("cannot write {}: {error}", out.display()));
    // As any new file, not as a private one.
    let permissions = Permissions::from_mode(0o666);
    let partial = tempfile::Builder::new().prefix(".convert-").permissions(permissions).tempfile_in(folder);
    // Without the temporary name, which nobody asked for.
    let without_path = |error: std::io::Error| cannot_write(error.kind().into());
    let mut partial = partial.map_err(without_path)?;
    let to = layout.native;
    let mut writer = BufWriter::with_capacity(256 * 1024, partial.as_file_mut());
    let n_bytes = state::convert(&mut file.reader, file.len, layout, to, &mut writer)
        .map_err(|error| file.fail(format!("cannot rewrite state version {from} as {to}: {}", told(&error))))?;
    drop(writer);
    if args.force {
        partial.persist(out).map_err(|error| cannot_write(error.error))?;
        return Ok(n_bytes);
    }
    // Somebody may have made it meanwhile.
    match partial.persist_noclobber(out) {
        Ok(_) => Ok(n_bytes),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Err(exists(out)),
        Err(error) => Err(cannot_write(error.error)),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::usage(format!("{} exists; --force replaces it", path.display()))
}
