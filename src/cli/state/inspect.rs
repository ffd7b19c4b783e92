//! `onebit state inspect`.

use std::fmt::Write;
use std::io::Seek;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::state::{self, BlockShape, Expect, Layout, Report, SectionKind, SectionReport};

use super::super::{Failure, print};
use super::{CacheArgs, StateFile, load};

/// Ids shown of each end of a longer list.
const N_SHOWN: usize = 4;

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// State file
    file: PathBuf,

    /// GGUF file of the model that the state is for
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,

    #[command(flatten)]
    cache: CacheArgs,

    /// One JSON object in place of text
    #[arg(long)]
    json: bool,
}

/// What a server with this model would do with the file.
struct Verdict {
    /// The model, as it was named.
    model: String,
    /// The state version that this build reads.
    native: u32,
    can_step_back: bool,
    /// Why the file would be refused.
    refusal: Option<String>,
}

pub(super) fn main(args: &InspectArgs) -> Result<(), Failure> {
    let mut file = StateFile::open(&args.file)?;
    let engine = args.model.as_deref().map(|model| load(model, &args.cache)).transpose()?;
    let layout = engine.as_ref().and_then(|engine| engine.state_layout().ok());
    let report = match state::inspect(&mut file.reader, file.len, layout) {
        Ok(report) => report,
        Err(error) => {
            if args.json {
                let object = json!({
                    "file": args.file.display().to_string(), "bytes": file.len, "problem": error.to_string(),
                });
                print(&format!("{object:#}\n"))?;
            }
            return Err(file.bad(&error));
        }
    };
    let verdict = engine.as_ref().map(|engine| verdict(&mut file, engine, &report)).transpose()?;
    print(&if args.json {
        format!("{:#}\n", as_json(&file, &report, verdict.as_ref()))
    } else {
        as_text(&file, &report, verdict.as_ref())
    })?;
    let refused = verdict.map_or(report.problem.is_some(), |verdict| verdict.refusal.is_some());
    // Everything was said.
    if refused { Err(Failure::new(1, "")) } else { Ok(()) }
}

fn verdict(file: &mut StateFile, engine: &Engine, report: &Report) -> Result<Verdict, Failure> {
    let info = engine.info();
    file.reader.rewind().map_err(|err| file.fail(err))?;
    Ok(Verdict {
        model: info.path.display().to_string(),
        native: crate::llama::state_version(),
        can_step_back: info.can_step_back,
        refusal: check(file, engine, report).err(),
    })
}

/// Why a server with this model would refuse the file.
pub(super) fn refusal(file: &mut StateFile, engine: &Engine) -> Result<Option<String>, Failure> {
    let report = state::inspect(&mut file.reader, file.len, engine.state_layout().ok());
    let report = report.map_err(|error| file.bad(&error))?;
    Ok(verdict(file, engine, &report)?.refusal)
}

/// The check that a handoff of exactly these tokens makes. How many fit is for the server's `--ctx-size` to say.
fn check(file: &mut StateFile, engine: &Engine, report: &Report) -> Result<(), String> {
    let layout = engine.state_layout()?;
    let ids = &report.header.ids;
    let expect = Expect { ids, n_states: ids.len(), n_ctx: u32::MAX, scan: true };
    if let Err(error) = state::check(&mut file.reader, file.len, layout, &expect) {
        return Err(format!("{error}{}", other_memory(report, layout)));
    }
    let n_vocab = engine.info().n_vocab;
    let outside = ids.iter().find(|id| u32::try_from(**id).map_or(true, |id| id >= n_vocab));
    outside.map_or(Ok(()), |id| Err(format!("token id {id} is outside the vocabulary of {n_vocab} tokens")))
}

/// Of a file for another kind of model the first wrong byte says little.
fn other_memory(report: &Report, layout: &Layout) -> String {
    let names = |kinds: Vec<SectionKind>| kinds.iter().map(SectionKind::to_string).collect::<Vec<_>>().join(" and ");
    let of_file: Vec<_> = report.sections.iter().map(|section| section.kind).collect();
    let of_model: Vec<_> = layout.sections.iter().map(|section| section.kind).collect();
    if of_file.is_empty() || of_file == of_model {
        return String::new();
    }
    format!(" (the file holds {} memory, this model has {})", names(of_file), names(of_model))
}

fn as_text(file: &StateFile, report: &Report, verdict: Option<&Verdict>) -> String {
    let header = &report.header;
    let mut text = format!("{}: state version {}, {} bytes\n", file.path.display(), header.version, file.len);
    let packed = if header.packed { " (in llama-server's packed form)" } else { "" };
    let _ = writeln!(text, "  {} ids{packed}: {}", header.ids.len(), few(&header.ids));
    for section in &report.sections {
        section_text(&mut text, section);
    }
    if let Some(problem) = &report.problem {
        let _ = writeln!(text, "  the memory cannot be read: {problem}");
    }
    if let Some(verdict) = verdict {
        let _ = writeln!(text, "  {}: {}", verdict.model, verdict.text(header.version, header.ids.len()));
    }
    text
}

impl Verdict {
    /// `version` and `n` are the file's state version and its number of tokens.
    fn text(&self, version: u32, n: usize) -> String {
        if let Some(reason) = &self.refusal {
            return format!("refused: {reason}");
        }
        let converted = if version == self.native {
            String::new()
        } else {
            format!(" after a conversion from state version {version} to {}", self.native)
        };
        if self.can_step_back {
            format!("accepted{converted}, for a prompt of {n} or {} tokens", n + 1)
        } else {
            format!("accepted{converted}, for a prompt of {} tokens (this model cannot step back)", n + 1)
        }
    }
}

fn few(ids: &[i32]) -> String {
    let join = |ids: &[i32]| ids.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    if ids.len() <= 2 * N_SHOWN + 1 {
        return join(ids);
    }
    format!("{} ... {}", join(&ids[..N_SHOWN]), join(&ids[ids.len() - N_SHOWN..]))
}

fn section_text(text: &mut String, section: &SectionReport) {
    let _ = write!(text, "  {}: ", section.kind);
    let _ = match section.n_cells {
        1 => write!(text, "1 cell, position {}", section.pos_min),
        n => write!(text, "{n} cells, positions {} to {}", section.pos_min, section.pos_max),
    };
    if !section.in_order {
        text.push_str(" (not in order)");
    }
    let _ = write!(text, "; {} bytes at byte {}", section.bytes, section.offset);
    if section.cell_ext_bytes > 0 {
        let _ = write!(text, "; M-RoPE cells (+{} bytes)", section.cell_ext_bytes);
    }
    if let Some([k, v]) = section.rotation.filter(|rotation| *rotation != [0, 0]) {
        let _ = write!(text, "; rotated by {k} (K) and {v} (V)");
    }
    text.push('\n');
    for alike in section.blocks.chunk_by(|a, b| a.id.tensor == b.id.tensor && a.row == b.row) {
        let (first, last) = (alike[0], alike[alike.len() - 1]);
        let layers = if alike.len() == 1 { "layer" } else { "layers" };
        let _ = write!(text, "    {} of {layers} {}", first.id.tensor, first.id.layer);
        if alike.len() > 1 {
            let _ = write!(text, " to {}", last.id.layer);
        }
        let _ = writeln!(text, ": {} x {} ({} bytes a row)", first.row.n_values(), first.row.ty.name, first.row.bytes);
    }
}

fn as_json(file: &StateFile, report: &Report, verdict: Option<&Verdict>) -> Value {
    let ids = &report.header.ids;
    let shown = N_SHOWN.min(ids.len());
    json!({
        "file": file.path.display().to_string(),
        "bytes": file.len,
        "version": report.header.version,
        "packed": report.header.packed,
        "n_ids": ids.len(),
        "first_ids": ids[..shown],
        "last_ids": ids[ids.len() - shown..],
        "sections": report.sections.iter().map(section_json).collect::<Vec<_>>(),
        "problem": report.problem.as_ref().map(ToString::to_string),
        "verdict": verdict.map(|verdict| json!({
            "model": verdict.model,
            "accepted": verdict.refusal.is_none(),
            "reason": verdict.refusal,
            "reads_version": verdict.native,
            "converts": verdict.refusal.is_none() && report.header.version != verdict.native,
            "can_step_back": verdict.can_step_back,
        })),
    })
}

fn section_json(section: &SectionReport) -> Value {
    let tensor = |block: &BlockShape| {
        json!({
            "tensor": block.id.tensor.to_string(),
            "layer": block.id.layer,
            "type": block.row.ty.name,
            "values": block.row.n_values(),
            "row_bytes": block.row.bytes,
        })
    };
    json!({
        "kind": section.kind.to_string(),
        "offset": section.offset,
        "bytes": section.bytes,
        "n_cells": section.n_cells,
        "first_position": section.pos_min,
        "last_position": section.pos_max,
        "in_order": section.in_order,
        "cell_extension_bytes": section.cell_ext_bytes,
        "rotation": section.rotation,
        "n_layer": section.n_layer,
        "tensors": section.blocks.iter().map(tensor).collect::<Vec<_>>(),
    })
}
