//! What `onebit bench` prints.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Report;
use super::row::{Row, Spread};

const HEAD: [&str; 11] = [
    "device",
    "mode",
    "prompt",
    "at once",
    "provider ms",
    "prefill t/s",
    "prefill ms",
    "restore ms",
    "first byte ms",
    "handoff ms",
    "decode t/s",
];

/// Columns of words, which stand left; numbers stand right.
const N_WORDS: usize = 2;

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    for (name, value) in report.origin.lines() {
        let _ = writeln!(text, "{name:<8} {value}");
    }
    text.push('\n');
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(report.rows.iter().map(cells));
    // A step that nobody took needs no column.
    let columns: Vec<usize> =
        (0..HEAD.len()).filter(|&column| lines[1..].iter().any(|cells| cells[column] != "-")).collect();
    let width = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    for cells in &lines {
        let padded = columns.iter().map(|&column| match (&cells[column], width(column)) {
            (cell, width) if column < N_WORDS => format!("{cell:<width$}"),
            (cell, width) => format!("{cell:>width$}"),
        });
        let line = padded.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn cells(row: &Row) -> [String; HEAD.len()] {
    let [provider, prefill_rate, prefill, restore, first_byte, handoff, decode] =
        row.values().map(|(_, spread)| spread.map_or_else(|| "-".to_owned(), shown));
    let (prompt, parallel) = (row.n_prompt.to_string(), row.parallel.to_string());
    let (device, mode) = (row.device.clone(), row.kind.name().to_owned());
    [device, mode, prompt, parallel, provider, prefill_rate, prefill, restore, first_byte, handoff, decode]
}

/// `84.4 (82.1..86.0)`.
fn shown(spread: Spread) -> String {
    let Spread { median, least, most } = spread;
    format!("{} ({}..{})", number(median), number(least), number(most))
}

/// Three digits, or all before the point.
pub(super) fn number(value: f64) -> String {
    match value {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

pub(super) fn as_json(report: &Report) -> Value {
    let mut object = report.origin.as_json();
    object["rows"] = report.rows.iter().map(row_json).collect();
    object
}

fn row_json(row: &Row) -> Value {
    let mut object = json!({
        "device": row.device,
        "mode": row.kind.name(),
        "prompt_tokens": row.n_prompt,
        "parallel": row.parallel,
    });
    for (name, spread) in row.values() {
        object[name] = spread
            .map_or(Value::Null, |spread| json!({"median": spread.median, "min": spread.least, "max": spread.most}));
    }
    object
}
