//! `onebit state diff`.

use std::fmt::Write;
use std::io::Seek;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::state::{self, BlockDiff, Diff, Header, SectionKind, Tensor};

use super::super::{Failure, print};
use super::heat::{LEGEND, Style};
use super::{CacheArgs, StateFile, layout, load};

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// State file that is taken as right
    a: PathBuf,

    /// State file that is compared with it
    b: PathBuf,

    /// GGUF file of the model that both are for
    #[arg(short, long, value_name = "FILE", env = "ONEBIT_MODEL")]
    model: PathBuf,

    #[command(flatten)]
    cache: CacheArgs,

    /// One JSON object in place of text
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: &DiffArgs) -> Result<(), Failure> {
    let mut files = [StateFile::open(&args.a)?, StateFile::open(&args.b)?];
    let engine = load(&args.model, &args.cache)?;
    let layout = layout(&engine)?;
    let mut headers = Vec::new();
    for file in &mut files {
        // The whole structure, so that the message names the file that is wrong.
        let checked = state::first_rows(&mut file.reader, file.len, layout, 0);
        checked.map_err(|error| file.bad(&error))?;
        file.reader.rewind().map_err(|error| file.fail(error))?;
        headers.push(state::read_header(&mut file.reader, file.len).map_err(|error| file.bad(&error))?);
        file.reader.rewind().map_err(|error| file.fail(error))?;
    }
    let [a, b] = &mut files;
    let diff = state::diff((&mut a.reader, a.len), (&mut b.reader, b.len), layout, None);
    let diff = diff.map_err(|error| Failure::new(1, error.to_string()))?;
    let other_id = other_id(&headers[0], &headers[1]);
    print(&if args.json {
        format!("{:#}\n", as_json(&files, &headers, other_id, &diff))
    } else {
        as_text(&files, &headers, other_id, &diff, Style::of_stdout())
    })
}

/// The first index at which both files have an id, and not the same.
fn other_id(a: &Header, b: &Header) -> Option<usize> {
    a.ids.iter().zip(&b.ids).position(|(a, b)| a != b)
}

fn as_text(files: &[StateFile; 2], headers: &[Header], other_id: Option<usize>, diff: &Diff, style: Style) -> String {
    let mut text = String::new();
    for (name, (file, header)) in ["A", "B"].iter().zip(files.iter().zip(headers)) {
        let (path, version, n) = (file.path.display(), header.version, header.ids.len());
        let _ = writeln!(text, "{name}: {path}: state version {version}, {n} ids");
    }
    if let Some(index) = other_id {
        let (a, b) = (headers[0].ids[index], headers[1].ids[index]);
        let _ = writeln!(text, "The prompts differ: id {index} is {a} in A and {b} in B.");
    }
    table(&mut text, diff);
    heat(&mut text, diff, style);
    let _ = writeln!(text, "\n{}", summary(diff));
    text
}

fn table(text: &mut String, diff: &Diff) {
    let mut section = None;
    for block in &diff.blocks {
        if section != Some(block.id.section) {
            section = Some(block.id.section);
            let (kind, n) = (block.id.section.to_string(), block.positions.len());
            let n = if n == 1 { "1 position".to_owned() } else { format!("{n} positions") };
            let _ = writeln!(
                text,
                "\n{:<40} relative   gain    cosine     max abs    mean abs   worst",
                format!("{kind}, {n}")
            );
        }
        let name =
            format!("  {} {:<3} {} x {}", block.id.tensor, block.id.layer, block.row.n_values(), block.row.ty.name);
        let _ = match &block.errors {
            Some(errors) => writeln!(
                text,
                "{name:<40} {:<9}  {:.4}  {:<9.6}  {:<9}  {:<9}  {}",
                short(errors.relative_l2),
                errors.gain,
                errors.cosine,
                short(errors.max_abs),
                short(errors.mean_abs),
                if errors.max_abs == 0.0 { "-".to_owned() } else { errors.worst.to_string() }
            ),
            None => writeln!(text, "{name:<40} {}", why_not(block)),
        };
    }
}

/// Why a tensor has no numbers.
fn why_not(block: &BlockDiff) -> &'static str {
    match () {
        () if block.positions.is_empty() => "no position is in both files",
        () if block.same_bytes => "the same bytes",
        () => "not the same bytes (values of this type are not decoded)",
    }
}

fn short(number: f64) -> String {
    if number == 0.0 { "0".to_owned() } else { format!("{number:.2e}") }
}

/// One line for each layer: its K and V, or R and S, side by side.
fn heat(text: &mut String, diff: &Diff, style: Style) {
    let shown: Vec<&BlockDiff> = diff.blocks.iter().filter(|block| !block.spans.is_empty()).collect();
    let Some(most) = shown.iter().map(|block| block.spans.len()).max() else { return };
    let _ = writeln!(text, "\nerror along the positions: {} is {LEGEND}", style.scale());
    let mut done: Vec<(SectionKind, u32)> = Vec::new();
    for block in &shown {
        let layer = (block.id.section, block.id.layer);
        if done.contains(&layer) {
            continue;
        }
        done.push(layer);
        let of_layer = |tensors: [Tensor; 2]| {
            let both = shown.iter().filter(move |other| (other.id.section, other.id.layer) == layer);
            both.filter(move |other| tensors.contains(&other.id.tensor))
        };
        let line: Vec<String> = of_layer([Tensor::K, Tensor::R])
            .chain(of_layer([Tensor::V, Tensor::S]))
            .map(|block| {
                let padding = " ".repeat(most - block.spans.len());
                format!("{} {}{padding}", block.id.tensor, style.line(&block.spans))
            })
            .collect();
        let _ = writeln!(text, "  {} {:<3} {}", letter(layer.0), layer.1, line.join("  ").trim_end());
    }
}

/// Sections by their first letters, so that lines stay short.
fn letter(section: SectionKind) -> char {
    match section {
        SectionKind::Attention => 'a',
        SectionKind::Window => 's',
        SectionKind::Recurrent => 'r',
    }
}

fn summary(diff: &Diff) -> String {
    let compared = diff.blocks.iter().filter(|block| !block.positions.is_empty());
    if compared.clone().all(|block| block.same_bytes) {
        return "The compared values are the same, byte for byte.".to_owned();
    }
    let with_errors = compared.filter_map(|block| Some((block, block.errors?)));
    match with_errors.max_by(|(_, a), (_, b)| a.relative_l2.total_cmp(&b.relative_l2)) {
        Some((block, errors)) => {
            format!("Largest relative error: {} in {}.", short(errors.relative_l2), block.id)
        }
        None => "The values differ.".to_owned(),
    }
}

fn as_json(files: &[StateFile; 2], headers: &[Header], other_id: Option<usize>, diff: &Diff) -> Value {
    let of_file = |index: usize| {
        json!({
            "file": files[index].path.display().to_string(),
            "version": headers[index].version,
            "n_ids": headers[index].ids.len(),
        })
    };
    let tensor = |block: &BlockDiff| {
        let errors = block.errors;
        json!({
            "section": block.id.section.to_string(),
            "tensor": block.id.tensor.to_string(),
            "layer": block.id.layer,
            "type": block.row.ty.name,
            "positions": [block.positions.start, block.positions.end],
            "same_bytes": block.same_bytes,
            "relative_l2": errors.map(|errors| errors.relative_l2),
            "gain": errors.map(|errors| errors.gain),
            "cosine": errors.map(|errors| errors.cosine),
            "max_abs": errors.map(|errors| errors.max_abs),
            "mean_abs": errors.map(|errors| errors.mean_abs),
            "worst_position": errors.map(|errors| errors.worst),
            "spans": block.spans,
        })
    };
    json!({
        "a": of_file(0),
        "b": of_file(1),
        "first_other_id": other_id,
        "tensors": diff.blocks.iter().map(tensor).collect::<Vec<_>>(),
    })
}
