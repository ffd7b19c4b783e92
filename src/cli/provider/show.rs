//! What `onebit provider check` prints.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::engine::ModelInfo;
use crate::hybrid::conformance::limits::{self, N_GREEDY};
use crate::hybrid::conformance::{Area, Outcome, Report, Settings, Unhappy};

/// What is checked, and the head of the table.
pub(super) fn head(settings: &Settings, info: &ModelInfo) -> String {
    let provider = settings.hybrid.provider.as_deref().unwrap_or("?".as_ref()).display();
    let mut text = format!("{provider} against {} on {}\n\n", info.path.display(), info.device);
    let _ = writeln!(
        text,
        "{:<12} {:>6}  {:<8}  {:<5}  {:<27}  {:<6}  {:<8}  {:<6}  time",
        "prompt", "tokens", "contract", "state", "largest error of a tensor", "argmax", "KL, nats", "greedy"
    );
    text
}

/// One row of the table.
pub(super) fn row(outcome: &Outcome) -> String {
    let cell = |area: Area| match outcome.passed(area) {
        None => "-",
        Some(true) => "ok",
        Some(false) => "FAIL",
    };
    let numbered = |area: Area, number: Option<String>| match number {
        None => cell(area).to_owned(),
        Some(number) if outcome.passed(area) == Some(false) => format!("{number} FAIL"),
        Some(number) => number,
    };
    let worst = outcome.worst.map(|worst| {
        let section = worst.id.section.to_string();
        let section = section.split(' ').next().unwrap_or_default();
        match worst.relative_l2 {
            0.0 => "0".to_owned(),
            error => format!("{error:.1e} {} {} {section}", worst.id.tensor, worst.id.layer),
        }
    });
    let greedy = outcome.n_greedy.map_or_else(|| "-".to_owned(), |n| format!("{n}/{N_GREEDY}"));
    let time = outcome.elapsed.map_or_else(|| "-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()));
    let row = format!(
        "{:<12} {:>6}  {:<8}  {:<5}  {:<27}  {:<6}  {:<8}  {greedy:<6}  {time}",
        outcome.name,
        outcome.n_asked,
        cell(Area::Contract),
        cell(Area::State),
        numbered(Area::Values, worst),
        cell(Area::Argmax),
        numbered(Area::Distribution, outcome.kl.map(|kl| if kl == 0.0 { "0".to_owned() } else { format!("{kl:.1e}") })),
    );
    format!("{}\n", row.trim_end())
}

/// What follows the table: what was left out, what must fail, every fault, the verdict.
pub(super) fn tail(report: &Report) -> String {
    let mut text = String::new();
    for left_out in &report.left_out {
        let _ = writeln!(text, "left out: {left_out}");
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text.push('\n');
    for unhappy in &report.unhappy {
        let _ = match &unhappy.fault {
            Some(_) => writeln!(text, "{:<25} FAIL", unhappy.name),
            None => writeln!(text, "{:<25} ok, {}", unhappy.name, unhappy.found),
        };
    }
    text.push('\n');
    for outcome in &report.prompts {
        for fault in &outcome.faults {
            let _ = writeln!(text, "{}: {}: {}", outcome.name, fault.area, fault.text);
        }
    }
    for (name, fault) in report.unhappy.iter().filter_map(|unhappy| Some((unhappy.name, unhappy.fault.as_ref()?))) {
        let _ = writeln!(text, "{name}: {fault}");
    }
    let n_prompts = report.prompts.len();
    let _ = match report.n_faults() {
        0 => writeln!(text, "PASSED: {n_prompts} prompts, no faults"),
        1 => writeln!(text, "FAILED: {n_prompts} prompts, 1 fault"),
        n => writeln!(text, "FAILED: {n_prompts} prompts, {n} faults"),
    };
    text
}

pub(super) fn as_json(settings: &Settings, info: &ModelInfo, report: &Report) -> Value {
    json!({
        "provider": settings.hybrid.provider.as_ref().map(|path| path.display().to_string()),
        "model": info.path.display().to_string(),
        "device": info.device,
        "limits": {
            "max_kl": settings.max_kl,
            "max_relative_error": limits::MAX_RELATIVE,
            "max_gain_error": limits::MAX_GAIN_ERROR,
            "near_tie": limits::near_tie(settings.max_kl),
        },
        "prompts": report.prompts.iter().map(outcome_json).collect::<Vec<_>>(),
        "left_out": report.left_out,
        "notes": report.notes,
        "unhappy": report.unhappy.iter().map(unhappy_json).collect::<Vec<_>>(),
        "n_faults": report.n_faults(),
        "passed": report.passed(),
    })
}

fn outcome_json(outcome: &Outcome) -> Value {
    json!({
        "name": outcome.name,
        "n_prompt": outcome.n_prompt,
        "n_asked": outcome.n_asked,
        "contract": outcome.passed(Area::Contract),
        "state": outcome.passed(Area::State),
        "state_version": outcome.version,
        "values": outcome.passed(Area::Values),
        "worst_tensor": outcome.worst.map(|worst| json!({
            "section": worst.id.section.to_string(),
            "tensor": worst.id.tensor.to_string(),
            "layer": worst.id.layer,
            "relative_error": worst.relative_l2,
        })),
        "argmax": outcome.argmax.map(|(theirs, ours)| json!({
            "provider": theirs.0, "own": ours.0, "passed": outcome.passed(Area::Argmax),
        })),
        "kl": outcome.kl,
        "distribution": outcome.passed(Area::Distribution),
        "greedy_equal": outcome.n_greedy,
        "greedy_tokens": N_GREEDY,
        "seconds": outcome.elapsed.map(|elapsed| elapsed.as_secs_f64()),
        "faults": outcome.faults.iter().map(|fault| json!({
            "area": fault.area.to_string(), "text": fault.text,
        })).collect::<Vec<_>>(),
    })
}

fn unhappy_json(unhappy: &Unhappy) -> Value {
    json!({
        "name": unhappy.name,
        "passed": unhappy.fault.is_none(),
        "status": unhappy.status,
        "fault": unhappy.fault,
    })
}
