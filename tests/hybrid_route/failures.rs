//! Every way in which a handoff can fail: the client sees the CPU's answer, the operator reads why, and the next handoff
//! works again.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::bench::{Bench, GOOD, expect_fallback, expect_handoff};
use crate::common::model;
use crate::common::process::{SOON, until_gone, written_pids};
use crate::common::request::Request;

const PROMPT: &str = "It_was_the_best_of_times.";
/// Tokens of the prompt: a byte each, and BOS.
const N: usize = PROMPT.len() + 1;

/// Does the work, so that a row can spoil the file.
const PREFILL: &str = "\"$prefill\" \"$@\" > said";

/// Compares a reason with a pattern in which `*` stands for anything.
fn check_reason(reason: &str, pattern: &str) {
    let mut rest = reason;
    let mut parts = pattern.split('*').peekable();
    let mut is_first = true;
    while let Some(part) = parts.next() {
        let found = match (is_first, parts.peek()) {
            (true, _) => rest.strip_prefix(part),
            (false, None) => rest.ends_with(part).then_some(""),
            (false, Some(_)) => rest.split_once(part).map(|(_, rest)| rest),
        };
        rest = found.unwrap_or_else(|| panic!("the reason is {reason:?}, expected {pattern:?}"));
        is_first = false;
    }
    assert_eq!(rest, "", "the reason is {reason:?}, expected {pattern:?}");
}

/// One server for all rows; between them, it must be able to hand over again.
fn check(rows: &[(&str, &str)]) {
    let bench = Bench::new(GOOD);
    let server = bench.start();
    let request = Request::text(PROMPT);
    for (behaviour, pattern) in rows {
        bench.behave(behaviour);
        check_reason(&expect_fallback(&server, &request), pattern);
        bench.behave(GOOD);
        expect_handoff(&server, &request);
    }
    server.stop();
}

#[test]
fn bad_ends() {
    check(&[
        (
            "echo loading >&2; echo; echo 'no NPU found' >&2; exit 3",
            "the provider exited with status 3: loading | no NPU found",
        ),
        ("exit 1", "the provider exited with status 1"),
        ("kill -KILL $$", "the provider was killed by signal 9 (SIGKILL)"),
        ("echo oh >&2; kill -SEGV $$", "the provider was killed by signal 11 (SIGSEGV): oh"),
        ("exec >&- 2>&-; sleep 0.1; exit 4", "the provider exited with status 4"),
        // A good file and a good reply count for nothing then.
        (&format!("{PREFILL}; cat said; exit 7"), "the provider exited with status 7"),
    ]);
}

#[test]
fn bad_replies() {
    let say = |text: &str| format!("{PREFILL}; echo '{text}'");
    check(&[
        (PREFILL, "the provider wrote no reply to stdout"),
        (&say("done in 12 ms"), "the provider's reply is not JSON: done in 12 ms"),
        (&say(r#"{"n_tokens": 26, "#), r#"the provider's reply is not JSON: {"n_tokens": 26,"#),
        (&say("26"), "the provider's reply is not what the contract says: 26 is no object"),
        (
            &say(r#"{"n_tokens": 26, "prefill_ms": 1}"#),
            "the provider's reply is not what the contract says: missing field `argmax`",
        ),
        (
            &say(r#"{"n_tokens": 25, "argmax": 1, "prefill_ms": 1}"#),
            &format!("the provider evaluated 25 tokens, {N} were asked"),
        ),
        (&format!("{PREFILL}; cat said; echo bye"), "the provider's reply is not JSON: bye"),
    ]);
}

#[test]
fn no_such_file() {
    let not_a_file = [
        ("reply", "the provider wrote no state file"),
        ("reply; rm -rf \"$PWD\"", "the provider wrote no state file"),
        ("mkdir \"$out\"; reply", "the provider's state file is a directory"),
        (": > \"$out\"; reply", "the provider's state file is empty"),
        ("mkfifo \"$out\"; reply", "the provider's state file is no regular file"),
        (
            "\"$prefill\" --tokens \"$tokens\" --out real --model \"$model\" && ln -s real \"$out\"",
            "the provider's state file is a symbolic link",
        ),
        ("ln -s /nowhere \"$out\"; reply", "the provider's state file is a symbolic link"),
    ];
    check(&not_a_file);
}

#[test]
fn states_of_something_else() {
    let prefill = |tokens: &str, model: &str| {
        format!("{tokens} > other; \"$prefill\" --tokens other --out \"$out\" --model {model} > said; reply")
    };
    check(&[
        // The first id of the file that differs, and where.
        (
            &prefill("sed '3s/.*/99/' \"$tokens\"", "\"$model\""),
            &format!("bad state file: token id 2 at byte 20 is 99, the prompt has {}", model::byte_token(b't')),
        ),
        (&prefill("head -n 3 \"$tokens\"", "\"$model\""), "bad state file: 3 token ids at byte 8, expected 26*"),
        (&prefill("head -n -2 \"$tokens\"", "\"$model\""), "bad state file: 24 token ids at byte 8, expected 26*"),
        (&prefill("cat \"$tokens\" \"$tokens\"", "\"$model\""), "bad state file: 52 token ids at byte 8, expected 26*"),
        (
            &prefill("cat \"$tokens\"", model::other_shape().to_str().unwrap()),
            "bad state file: *: 3 layers at byte *, this model has 2",
        ),
        (
            "export ONEBIT_PREFILL_CACHE_TYPE_K=bf16; exec \"$prefill\" \"$@\"",
            "bad state file: *: type bf16 (30) at byte *, expected f16 (1)",
        ),
        (
            "export ONEBIT_PREFILL_CACHE_TYPE_V=f32; exec \"$prefill\" \"$@\"",
            "bad state file: *: type f32 (0) at byte *, expected f16 (1)",
        ),
    ]);
}

#[test]
fn states_cut_short() {
    // The magic, the version, the id count, the ids, the cell count, the cells, the rows.
    let head = 12 + 4 * N;
    let inside = [1, 3, 4, 8, 11, 12, 16, head - 1, head, head + 4, head + 8, head + 8 + 12 * N, head + 2000];
    let sizes = inside.iter().map(ToString::to_string).chain(["-1".to_owned(), "-100".to_owned()]);
    let rows: Vec<_> = sizes.map(|size| format!("{PREFILL}; truncate -s {size} \"$out\"; cat said")).collect();
    let rows: Vec<_> = rows.iter().map(|row| (&**row, "bad state file: the file ends too early: *")).collect();
    check(&rows);
}

#[test]
fn states_with_bad_bytes() {
    // Writes bytes (printf's escapes) over those at an offset; a negative one counts from the end.
    let patch = |offset: &str, bytes: &str| {
        format!(
            "{PREFILL}; at={offset}; [ $at -ge 0 ] || at=$(($(stat -c %s \"$out\") + at)); \
             printf '{bytes}' | dd of=\"$out\" bs=1 seek=$at conv=notrunc 2> /dev/null; cat said"
        )
    };
    let head = 12 + 4 * N;
    let at = |offset: usize| offset.to_string();
    check(&[
        (&patch("0", "x"), "bad state file: not a sequence-state file: magic *"),
        (&patch("0", "nsgg"), "bad state file: not a sequence-state file: * (this is a whole-context file: *"),
        (&patch("4", "\\011"), "bad state file: state version 9 at byte 4: *"),
        (&patch("8", "\\377\\377\\377\\377"), "bad state file: *"),
        (&patch(&at(head), "\\002"), &format!("bad state file: *: 2 streams at byte {head}, expected 1*")),
        (&patch(&at(head + 4), "\\031"), &format!("bad state file: *: 25 cells at byte {}, expected 26", head + 4)),
        // The position of the first cell: -1 aborts llama.cpp, a large one breaks the requests after it.
        (
            &patch(&at(head + 8), "\\377\\377\\377\\377"),
            "bad state file: *: cell 0 at byte * has position -1, expected 0",
        ),
        (
            &patch(&at(head + 8), "\\000\\000\\001"),
            "bad state file: *: cell 0 at byte * has position 65536, expected 0",
        ),
        // The last two bytes are the last half-precision value of V.
        (&patch("-2", "\\000\\176"), "bad state file: *: NaN or infinity in cell 25 at byte *"),
        (&patch("-2", "\\000\\174"), "bad state file: *: NaN or infinity in cell 25 at byte *"),
        (
            &format!("{PREFILL}; echo more >> \"$out\"; cat said"),
            "bad state file: 5 bytes follow the end of the state at byte *",
        ),
    ]);
}

#[test]
fn no_provider() {
    let bench = Bench::new(GOOD);
    let server = bench.setup_without_provider().start();
    for request in [Request::text(PROMPT), Request::chat(PROMPT).streamed()] {
        let reason = expect_fallback(&server, &request);
        assert_eq!(reason, "no prefill provider (name one with --prefill-provider or ONEBIT_HYBRID_PREFILL)");
    }
    server.stop();
}

#[test]
fn a_provider_that_cannot_be_started_is_used_once_it_can() {
    let bench = Bench::new(GOOD);
    let provider = bench.path("late");
    let server = bench.setup_without_provider().flag("--prefill-provider", &provider).start();
    let request = Request::text(PROMPT);
    let expect = |reason: &str| {
        let expected = format!("cannot start the provider {}: {reason}", provider.display());
        assert_eq!(expect_fallback(&server, &request), expected);
    };
    expect("No such file or directory");
    bench.install(&provider);
    fs::set_permissions(&provider, fs::Permissions::from_mode(0o600)).unwrap();
    expect("Permission denied");
    fs::set_permissions(&provider, fs::Permissions::from_mode(0o700)).unwrap();
    expect_handoff(&server, &request);
    fs::remove_file(&provider).unwrap();
    fs::create_dir(&provider).unwrap();
    expect("Permission denied");
    server.stop();
}

#[test]
fn a_provider_that_is_late_is_ended_with_its_children() {
    // Ready-made, so that a good run is far from the limit.
    let bench = Bench::new("exec \"$prefill\" \"$@\" > \"$bench/said\"");
    let request = Request::text(PROMPT);
    let server = bench.start();
    bench.behave(&format!("{PREFILL}; cp \"$out\" \"$bench/state\"; cp said \"$bench/said\"; cat said"));
    expect_handoff(&server, &request);
    server.stop();
    let ready_made = "cp \"$bench/state\" \"$out\"; cat \"$bench/said\"";

    let server = bench.setup().flag("--prefill-timeout", "0.5").start();
    for stubborn in ["", "trap '' TERM;"] {
        let _ = fs::remove_file(bench.path("pids"));
        bench.behave(&format!(
            "{stubborn} echo waiting >&2; echo $$ >> \"$bench/pids\"; sleep 1000 & echo $! >> \"$bench/pids\"; \
             setsid sleep 1000 & echo $! >> \"$bench/pids\"; while :; do wait; sleep 1; done"
        ));
        let reason = expect_fallback(&server, &request);
        assert_eq!(reason, "the provider did not finish within 0.5 s: waiting");
        until_gone(&written_pids(&bench.path("pids"), 3), SOON);
        bench.behave(ready_made);
        expect_handoff(&server, &request);
    }
    server.stop();
}
