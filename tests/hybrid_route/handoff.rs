//! Handoffs that work: the answer is the one of a server that evaluates the prompt itself.

use crate::common::bench::{Bench, GOOD, expect_handoff};
use crate::common::model;
use crate::common::process::{SOON, until_gone, written_pids};
use crate::common::request::{Request, cpu_answer};
use crate::common::server::HybridLine;

const PROMPT: &str = "Once upon a time there was a byte.";

#[test]
fn the_answer_is_the_cpus_in_every_form() {
    let bench = Bench::new(GOOD);
    let server = bench.start();
    let requests = [
        Request::text(PROMPT),
        Request::text(PROMPT).streamed(),
        Request::chat(PROMPT),
        Request::chat(PROMPT).streamed(),
    ];
    let texts: Vec<_> = requests.iter().map(|request| expect_handoff(&server, request).text).collect();
    assert_eq!((&texts[0], &texts[2]), (&texts[1], &texts[3]));
    assert_ne!(texts[0], texts[2], "the template adds to the prompt");
    // Nothing of a request is left for the next one.
    for (request, text) in requests.iter().zip(texts) {
        assert_eq!(expect_handoff(&server, request).text, text);
    }
    server.stop();
}

#[test]
fn prompts_of_every_length() {
    let bench = Bench::new(GOOD);
    let server = bench.start();
    for n_bytes in [1, 2, 30, 31, 32, 255, 256, 700, 1500] {
        let answer = expect_handoff(&server, &Request::text(&"What_is_it?_".repeat(n_bytes)[..n_bytes]));
        assert_eq!(answer.n_prompt(), n_bytes + 1, "a token for each byte, and one in front");
    }
    // BOS alone.
    expect_handoff(&server, &Request::text("x").with("prompt", [1].as_slice().into()));
    server.stop();
}

#[test]
fn other_weights_are_found_by_the_probe() {
    let other = model::other_weights();
    let bench = Bench::new(&format!("\"$prefill\" --tokens \"$tokens\" --out \"$out\" --model '{}'", other.display()));
    let server = bench.start();
    let request = Request::text(PROMPT);
    // A refused file does not count as the first: the next is looked at as well.
    for _ in 0..3 {
        assert_eq!(server.ask(&request).visible(), cpu_answer(&request).visible());
        let HybridLine::Fallback(reason) = server.hybrid_line() else { panic!("the file was taken") };
        assert!(reason.starts_with("bad state file: the values are not this model's: K of layer "), "{reason}");
    }
    server.stop();
}

#[test]
fn the_state_decides_the_answer() {
    let other = model::other_weights();
    let bench = Bench::new(&format!("\"$prefill\" --tokens \"$tokens\" --out \"$out\" --model '{}'", other.display()));
    // With the probe on, the file is refused: see `other_weights_are_found_by_the_probe`.
    let server = bench.setup().flag("--state-probe", "off").start();
    let request = Request::text(PROMPT);
    let (answer, expected) = (server.ask(&request), cpu_answer(&request));
    assert_eq!(server.hybrid_line(), HybridLine::Handoff { n_prompt: expected.n_prompt() });
    // Nothing was evaluated here but the last token: numbers that are wrong, yet well-formed, give another answer.
    assert_ne!(answer.text, expected.text);
    server.stop();
}

#[test]
fn what_the_contract_leaves_open() {
    let megabytes = "head -c 2000000 /dev/zero | tr '\\0' x";
    let orphan = "setsid sleep 1000 & echo $! > \"$bench/orphan\"";
    let behaviours = [
        ("a megabyte without a newline on stdout", format!("{megabytes}; echo; {GOOD}")),
        ("many lines on stdout", format!("seq 200000; {GOOD}")),
        ("a megabyte without a newline on stderr", format!("{megabytes} >&2; {GOOD}")),
        ("many lines on stderr", format!("seq 20000 >&2; {GOOD}")),
        ("blank lines after the reply", "\"$prefill\" \"$@\" && printf '\\n \\n'".to_owned()),
        ("a state of all tokens but the last", "head -n -1 \"$tokens\" > some && \"$prefill\" --tokens some --out \"$out\" --model \"$model\" > /dev/null && reply".to_owned()),
        ("a grandchild that holds the pipes", format!("{orphan}; {GOOD}")),
        ("rubbish in the working directory", format!("mkdir -p a/b && touch a/b/c && chmod 0 a/b; {GOOD}")),
    ];
    let bench = Bench::new(GOOD);
    let server = bench.start();
    for (name, behaviour) in behaviours {
        eprintln!("{name}");
        bench.behave(&behaviour);
        expect_handoff(&server, &Request::text(PROMPT));
    }
    until_gone(&written_pids(&bench.path("orphan"), 1), SOON);
    let said = server.said();
    assert!(said.contains(&"provider: 20000".to_owned()), "stderr of the provider is forwarded");
    assert!(said.iter().all(|line| line.len() < 2000), "and cut");
    server.stop();
}
