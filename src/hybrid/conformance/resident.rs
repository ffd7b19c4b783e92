//! What the protocol of a resident provider asks beside good answers: one process for all requests, which ends with its stdin.

use super::super::HybridError;
use super::super::resident::Tally;
use super::{Kit, Unhappy};

/// Looks at how the process behaved while it was asked, and ends it. Does nothing for a one-shot provider.
pub(super) fn run(kit: &Kit<'_>, unhappy: &mut Vec<Unhappy>, notes: &mut Vec<String>) {
    kit.runtime.block_on(kit.runner.close());
    let Some(tally) = kit.runner.tally() else { return };
    unhappy.extend([one_process(&tally), only_what_was_asked(&tally)]);
    // One that failed at the last request is not there any more.
    if tally.end.is_some() || tally.failure.is_none() {
        unhappy.push(end_of_stdin(&tally));
    }
    if tally.n_noise > 0 {
        notes.push(format!("lines on stdout that are no answers, which are passed over: {}", tally.n_noise));
    }
}

fn one_process(tally: &Tally) -> Unhappy {
    let fault = tally.failure.as_ref().map(|failure| {
        format!("the provider is to stay between requests, and was started {} times: {failure}", tally.n_starts)
    });
    Unhappy { name: "one process for all", status: None, found: "it stayed".to_owned(), fault }
}

fn only_what_was_asked(tally: &Tally) -> Unhappy {
    let n = tally.n_unasked;
    let fault = (n > 0).then(|| format!("{n} answers have an id that was not asked for at that time"));
    Unhappy { name: "one answer for a request", status: None, found: "no others".to_owned(), fault }
}

fn end_of_stdin(tally: &Tally) -> Unhappy {
    let status = match tally.end {
        Some(HybridError::Exited { code, .. }) => Some(code),
        _ => None,
    };
    let fault = match &tally.end {
        _ if status == Some(0) => None,
        Some(end) => Some(format!("{end}; it should exit with 0 when its stdin ends")),
        None => Some("the provider goes on after the end of its stdin, and had to be killed".to_owned()),
    };
    Unhappy { name: "end of stdin", status, found: "it ended with status 0".to_owned(), fault }
}
