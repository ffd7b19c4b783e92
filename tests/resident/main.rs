//! `--prefill-mode resident`: one provider process for all requests, whatever becomes of it.

#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;

mod check;
mod prefill;

use std::time::Duration;

use common::bench::{Bench, entries, expect_fallback, expect_handoff};
use common::http::Exchange;
use common::process::{SOON, is_alive, until, until_gone, wait_for, written_pids};
use common::request::{Answer, Request, cpu_answer};
use common::server::{HybridLine, Server, Setup};
use rustix::process::{Pid, Signal, kill_process};

/// The reference provider, resident, which also tells that it was started.
const GOOD: &str = "echo $$ >> \"$bench/starts\"; exec \"$prefill\" \"$@\"";

/// A resident provider in sh. `before` is run with every request. Then `answer` has the one-shot reference provider `work`, and
/// says what it said, or refuses.
fn scripted(before: &str, answer: &str) -> String {
    format!(
        r#"model=$2
        [ -f "$model" ] || exit 3
        echo $$ >> "$bench/starts"
        field() {{ rest=${{line#*\"$1\":\"}}; echo "${{rest%%\"*}}"; }}
        work() {{ said=$("$prefill" --tokens "$(field tokens)" --out "$(field out)" --model "$model"); }}
        say() {{ echo "{{\"id\":$id,${{said#?}}"; }}
        refuse() {{ echo "{{\"id\":$id,\"error\":\"it failed\"}}"; }}
        answer() {{ if work; then say; else refuse; fi; }}
        while read -r line; do
            id=${{line#*\"id\":}}; id=${{id%%,*}}
            {before}
            {answer}
        done
        echo end >> "$bench/ends""#
    )
}

fn resident(bench: &Bench) -> Setup {
    bench.setup().flag("--prefill-mode", "resident")
}

/// Process ids of the provider, one for each start.
fn starts(bench: &Bench) -> Vec<i32> {
    bench.text("starts").lines().map(|line| line.parse().unwrap()).collect()
}

/// Asks until a prompt is handed over again. Until the provider may be started, requests fall back and say so.
fn expect_recovery(server: &Server, request: &Request) {
    let expected = cpu_answer(request);
    wait_for("a handoff", SOON, || {
        assert_eq!(server.ask(request).visible(), expected.visible());
        match server.hybrid_line() {
            HybridLine::Handoff { .. } => Some(()),
            HybridLine::Fallback(reason) => {
                assert!(reason.starts_with("the provider is started again in "), "{reason}");
                None
            }
        }
    });
}

/// What is in the server's slot directory beside its lock.
fn runs(bench: &Bench) -> usize {
    bench.slot_dirs().iter().map(|slot| entries(slot).len() - 1).sum()
}

#[test]
fn several_requests_and_one_process() {
    let bench = Bench::new(GOOD);
    let server = resident(&bench).start();
    let story = "It_was_the_best_of_times,_it_was_the_worst_of_times. ".repeat(15);
    // Longer, the same, shorter, another one: what the provider holds of the last prompt must never show.
    for prompt in [&story[..40], &story[..600], &story, &story, &story[..70], "Something else altogether.", &story] {
        expect_handoff(&server, &Request::text(prompt));
    }
    expect_handoff(&server, &Request::chat("Hello?").streamed());
    let pids = starts(&bench);
    assert_eq!(pids.len(), 1);
    assert!(is_alive(pids[0]));
    until("the files are gone", SOON, || runs(&bench) == 0);
    server.stop();
    assert!(!is_alive(pids[0]), "gone before the server is");
    assert!(bench.slot_dirs().is_empty());
}

#[test]
fn what_the_process_is_given() {
    let seen = r#"printf '%s\n' "$#" "$1" "$3" "$4" "$5" "$ONEBIT_HYBRID_BACKEND_URL" "$(pwd)" > "$bench/seen";"#;
    let bench = Bench::new(&format!("{seen} {}", scripted("echo \"$line\" >> \"$bench/lines\"", "answer")));
    let elfs = bench.path("elfs");
    let server = resident(&bench).flag("--prefill-elfs", &elfs).start();
    for _ in 0..2 {
        expect_handoff(&server, &Request::text("What do you see?"));
    }
    let slot = bench.slot_dirs().remove(0);
    let expected =
        ["5", "--model", "--elfs", elfs.to_str().unwrap(), "--resident", &server.url(), slot.to_str().unwrap()];
    assert_eq!(bench.text("seen").lines().collect::<Vec<_>>(), expected);
    for (index, line) in bench.text("lines").lines().enumerate() {
        let request: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(request["id"], index + 1);
        for (field, end) in [("tokens", ".tokens"), ("out", ".state")] {
            let path = request[field].as_str().unwrap();
            assert!(path.starts_with(slot.to_str().unwrap()) && path.ends_with(end), "{line}");
        }
    }
    server.stop();
    assert_eq!(bench.text("ends"), "end\n", "it ended by itself");
}

#[test]
fn one_that_dies_is_started_again() {
    let bench = Bench::new("read -r line; echo 'out of NPUs' >&2; kill -KILL $$");
    let server = resident(&bench).start();
    let request = Request::text("Are you there?");
    assert_eq!(expect_fallback(&server, &request), "the provider was killed by signal 9 (SIGKILL): out of NPUs");
    // Another failure in a row, a longer pause; the reason of the last one is told while it lasts.
    bench.behave("exit 3");
    let reason = wait_for("the next start", SOON, || {
        let reason = expect_fallback(&server, &request);
        let rests = reason.starts_with("the provider is started again in ");
        assert!(!rests || reason.contains(" s: the provider was killed by signal 9"), "{reason}");
        (!rests).then_some(reason)
    });
    assert_eq!(reason, "the provider exited with status 3");
    bench.behave(GOOD);
    expect_recovery(&server, &request);
    // Nobody waits for it when it dies: the next request finds it gone.
    kill_process(Pid::from_raw(starts(&bench)[0]).unwrap(), Signal::KILL).unwrap();
    until_gone(&starts(&bench), SOON);
    let (answer, expected) = (server.ask(&request), cpu_answer(&request));
    assert_eq!(answer.visible(), expected.visible());
    if let HybridLine::Fallback(reason) = server.hybrid_line() {
        assert!(reason.contains("the provider was killed by signal 9 (SIGKILL)"), "{reason}");
    }
    expect_recovery(&server, &request);
    assert_eq!(starts(&bench).len(), 2);
    server.stop();
}

#[test]
fn one_that_dies_after_each_answer_hands_over_what_it_can() {
    let bench = Bench::new(&scripted("", "answer; exit 0"));
    let server = resident(&bench).start();
    for _ in 0..2 {
        expect_recovery(&server, &Request::text("Once and never again."));
    }
    assert_eq!(starts(&bench).len(), 2);
    server.stop();
}

#[test]
fn one_that_hangs_is_killed_and_started_again() {
    let hang = "echo $$ > \"$bench/pids\"; setsid sleep 1000 & echo $! >> \"$bench/pids\"; trap '' TERM; \
                echo thinking >&2; while :; do sleep 1; done";
    let bench = Bench::new(&format!("read -r line; {hang}"));
    let server = resident(&bench).flag("--prefill-timeout", "2").start();
    let request = Request::text("Take your time.");
    assert_eq!(expect_fallback(&server, &request), "the provider did not finish within 2 s: thinking");
    until_gone(&written_pids(&bench.path("pids"), 2), SOON);
    bench.behave(GOOD);
    expect_recovery(&server, &request);
    server.stop();
}

#[test]
fn one_that_reads_nothing_or_says_nothing_more() {
    let closed = |pipe: &str| format!("exec {pipe}; while :; do sleep 1; done");
    let bench = Bench::new(&closed(">&-"));
    let server = resident(&bench).start();
    let request = Request::text("Anybody?");
    assert_eq!(expect_fallback(&server, &request), "the provider closed its stdout");
    bench.behave(GOOD);
    expect_recovery(&server, &request);
    server.stop();
}

#[test]
fn a_program_that_does_not_start() {
    let bench = Bench::new(GOOD);
    std::fs::remove_file(bench.provider()).unwrap();
    let server = resident(&bench).start();
    let request = Request::text("Too early.");
    let expected = format!("cannot start the provider {}: No such file or directory", bench.provider().display());
    assert_eq!(expect_fallback(&server, &request), expected);
    bench.install(&bench.provider());
    expect_recovery(&server, &request);
    server.stop();
}

/// A megabyte in one line and a megabyte in many, on both pipes.
const NOISE: &str = "python3 -c \"import sys; a = 'x' * 999 + '\\n'; \
                     [f.write('y' * 1000000 + '\\n' + a * 1000) for f in (sys.stdout, sys.stderr)]\"";

#[test]
fn noise_hides_no_answer_and_stops_no_pipe() {
    let greeting = "echo hello; echo '{\"level\":\"info\"}'; echo '[1]'; echo 7;";
    let bench = Bench::new(&scripted(&format!("{greeting} {NOISE}"), &format!("answer; {NOISE}")));
    let server = resident(&bench).start();
    let request = Request::text("What a noise!");
    for _ in 0..3 {
        expect_handoff(&server, &request);
    }
    // All the time, also while nobody asks.
    until("the noise after the answer is read", SOON, || {
        server.said().iter().filter(|line| line.starts_with("provider: yyy")).count() == 6
    });
    assert_eq!(starts(&bench).len(), 1);
    server.stop();
}

#[test]
fn answers_of_others_are_passed_over() {
    let stale = "echo \"{\\\"id\\\":$((id - 1)),\\\"n_tokens\\\":1,\\\"argmax\\\":1,\\\"prefill_ms\\\":1}\"; \
                 echo \"{\\\"id\\\":$((id + 1000)),\\\"error\\\":\\\"not yours\\\"}\"";
    let bench = Bench::new(&scripted(stale, &format!("answer; {stale}")));
    let server = resident(&bench).start();
    for prompt in ["First.", "Second.", "Third."] {
        expect_handoff(&server, &Request::text(prompt));
    }
    assert_eq!(starts(&bench).len(), 1);
    server.stop();
}

#[test]
fn answers_that_are_no_use() {
    let prompt = "Do something!";
    let n_prompt = prompt.replace(' ', "___").len() + 1;
    let say = |fields: &str| format!("work; echo \"{{\\\"id\\\":$id,{}}}\"", fields.replace('"', "\\\""));
    let rows = [
        (say(r#""error":"no NPU today""#), "the provider answers: no NPU today".to_owned()),
        (say(r#""n_tokens":3"#), "the provider's reply is not what the contract says: missing field `argmax`".to_owned()),
        (
            say(r#""n_tokens":3,"argmax":1,"prefill_ms":1"#),
            format!("the provider evaluated 3 tokens, {n_prompt} were asked"),
        ),
        (
            "work; rm \"$(field out)\"; say".to_owned(),
            "the provider wrote no state file".to_owned(),
        ),
        (
            "tokens=$(field tokens); out=$(field out); ln -s /etc/passwd \"$out\"; reply | sed \"s/{/{\\\"id\\\":$id,/\""
                .to_owned(),
            "the provider's state file is a symbolic link".to_owned(),
        ),
    ];
    for (answer, reason) in rows {
        // The second request is answered well, by the same process.
        let once = format!("if [ \"$id\" = 1 ]; then {answer}; continue; fi");
        let bench = Bench::new(&scripted(&once, "answer"));
        let server = resident(&bench).start();
        assert_eq!(expect_fallback(&server, &Request::text(prompt)), reason);
        expect_handoff(&server, &Request::text(prompt));
        assert_eq!(starts(&bench).len(), 1);
        server.stop();
    }
}

/// A provider that works on its first request until the test lets it.
fn held_up() -> String {
    let hold = "if [ \"$id\" = 1 ]; then echo \"$line\" > \"$bench/got\"; \
                while [ ! -e \"$bench/go\" ]; do sleep 0.01; done; fi";
    scripted(hold, "answer")
}

/// A request that the provider works on.
fn held(bench: &Bench, server: &Server) -> Exchange {
    let exchange = server.send(&Request::text("Never mind."));
    until("the provider has the request", SOON, || bench.text("got").ends_with('\n'));
    exchange
}

#[test]
fn a_client_that_hangs_up_does_not_break_the_next_request() {
    let bench = Bench::new(&held_up());
    let server = resident(&bench).start();
    drop(held(&bench, &server));
    let request = Request::text("My turn.");
    let expected = cpu_answer(&request);
    let next = server.send(&request);
    assert_eq!(bench.text("got").lines().count(), 1);
    std::fs::write(bench.path("go"), "").unwrap();
    assert_eq!(Answer::read(&next.finish().unwrap()).visible(), expected.visible());
    assert_eq!(server.hybrid_line(), HybridLine::Handoff { n_prompt: expected.n_prompt() });
    assert_eq!(starts(&bench).len(), 1);
    until("the files of both are gone", SOON, || runs(&bench) == 0);
    server.stop();
}

#[test]
fn a_request_that_nobody_waits_for_is_not_waited_for_long() {
    let bench = Bench::new(&held_up());
    let server = resident(&bench).flag("--prefill-timeout", "2").start();
    drop(held(&bench, &server));
    until_gone(&starts(&bench), SOON);
    until("its files are gone", SOON, || runs(&bench) == 0);
    std::fs::write(bench.path("go"), "").unwrap();
    expect_recovery(&server, &Request::text("My turn."));
    assert_eq!(starts(&bench).len(), 2);
    server.stop();
}

/// A provider with a child in its group and one in a session of its own, which belong to the service.
const FAMILY: &str = "echo $$ > \"$bench/pids\"; sleep 1000 & echo $! >> \"$bench/pids\"; \
                      setsid sleep 1000 & echo $! >> \"$bench/pids\";";

#[test]
fn a_server_that_ends_takes_everything_with_it() {
    for (behaviour, signal) in [
        (scripted("", "answer"), Signal::TERM),
        (scripted("", "answer"), Signal::KILL),
        // It does not end with its stdin, and ignores what can be ignored.
        (format!("trap '' TERM HUP; {}; while :; do sleep 1; done", scripted("", "answer")), Signal::TERM),
    ] {
        let bench = Bench::new(&format!("{FAMILY} {behaviour}"));
        let server = resident(&bench).start();
        for _ in 0..2 {
            expect_handoff(&server, &Request::text("So long."));
        }
        let pids = written_pids(&bench.path("pids"), 3);
        assert!(pids.iter().all(|pid| is_alive(*pid)), "between requests they live");
        if signal == Signal::KILL {
            server.kill();
        } else {
            server.stop();
            assert!(pids.iter().all(|pid| !is_alive(*pid)), "gone before the server is");
        }
        until_gone(&pids, SOON);
    }
}

#[test]
fn a_server_that_ends_waits_for_no_answer() {
    let bench = Bench::new(&held_up());
    let server = resident(&bench).start();
    drop(held(&bench, &server));
    server.stop();
    until_gone(&starts(&bench), Duration::ZERO);
    assert!(bench.slot_dirs().is_empty());
}

#[test]
fn the_mode_may_come_from_the_environment() {
    let bench = Bench::new(GOOD);
    for (mode, n_starts) in [("resident", 1), ("", 3)] {
        let server = bench.setup().env("ONEBIT_PREFILL_MODE", mode).start();
        for prompt in ["One.", "Two."] {
            expect_handoff(&server, &Request::text(prompt));
        }
        server.stop();
        assert_eq!(starts(&bench).len(), n_starts, "{mode:?}");
    }
}
