//! What a provider is given: its command line, its environment, its files.

use std::path::PathBuf;

use crate::common::bench::{Bench, GOOD, expect_handoff};
use crate::common::model;
use crate::common::request::Request;
use crate::common::server::{Server, Setup};

/// Writes down what it sees, then does the work.
const RECORD: &str = r#"
printf '%s\n' "$@" > "$bench/argv"
env > "$bench/env"
pwd > "$bench/cwd"
cp "$tokens" "$bench/ids"
stat -c '%a %n' . .. "$tokens" > "$bench/modes"
exec "$prefill" "$@""#;

const PROMPT: &str = "What does it see?";
const URL: &str = "ONEBIT_HYBRID_BACKEND_URL=";

/// Starts the server, has it hand over one prompt, and returns what the provider wrote down.
fn recorded(bench: &Bench, setup: Setup) -> (Server, Vec<String>) {
    bench.behave(RECORD);
    let server = setup.start();
    expect_handoff(&server, &Request::text(PROMPT));
    let argv = bench.text("argv").lines().map(str::to_owned).collect();
    (server, argv)
}

#[test]
fn command_line_environment_and_files() {
    let bench = Bench::new(GOOD);
    let (server, argv) = recorded(&bench, bench.setup());

    let [tokens, out] = [&argv[1], &argv[3]].map(PathBuf::from);
    let model = model::tiny();
    assert_eq!(argv, ["--tokens", &argv[1], "--out", &argv[3], "--model", model.to_str().unwrap()]);

    let cwd = PathBuf::from(bench.text("cwd").trim_end());
    let slot_dirs = bench.slot_dirs();
    assert_eq!(out.components().count(), 1, "a bare name: {out:?}");
    assert_eq!((tokens.parent(), cwd.parent()), (Some(&*cwd), Some(&*slot_dirs[0])));
    let modes = bench.text("modes");
    let modes: Vec<_> = modes.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(modes, ["700", "700", "600"]);

    let expected: String = model::tokens(PROMPT).iter().map(|id| format!("{id}\n")).collect();
    assert_eq!(bench.text("ids"), expected);

    let env = bench.text("env");
    let url = env.lines().find_map(|line| line.strip_prefix(URL));
    assert_eq!(url, Some(&*server.url()));
    assert!(env.lines().any(|line| line.starts_with("PATH=")), "the server's own environment is passed on");
    server.stop();
}

#[test]
fn elfs_only_when_given() {
    let bench = Bench::new(GOOD);
    let rows = [
        ("not given", bench.setup(), None),
        ("by the flag", bench.setup().flag("--prefill-elfs", "/opt/elfs"), Some("/opt/elfs")),
        ("by the environment", bench.setup().env("ONEBIT_HYBRID_ELFS", "/opt/elfs"), Some("/opt/elfs")),
        (
            "by both",
            bench.setup().flag("--prefill-elfs", "/opt/flag").env("ONEBIT_HYBRID_ELFS", "/opt/env"),
            Some("/opt/flag"),
        ),
    ];
    for (name, setup, elfs) in rows {
        let (server, argv) = recorded(&bench, setup);
        let expected = elfs.map(|elfs| ["--elfs".to_owned(), elfs.to_owned()]);
        assert_eq!(argv[6..], *expected.as_ref().map_or(&[][..], |both| both), "{name}");
        server.stop();
    }
}

#[test]
fn named_by_flag_environment_or_path() {
    let bench = Bench::new(GOOD);
    let folder = bench.path("bin");
    std::fs::create_dir(&folder).unwrap();
    bench.install(&folder.join("some-provider"));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let named = || bench.setup_without_provider();
    let rows = [
        ("by the environment", named().env("ONEBIT_HYBRID_PREFILL", bench.provider())),
        ("by the flag, which wins", bench.setup().env("ONEBIT_HYBRID_PREFILL", "/no/such/provider")),
        ("a bare name in PATH", named().flag("--prefill-provider", "some-provider").env("PATH", path)),
    ];
    for (name, setup) in rows {
        eprintln!("{name}");
        let (server, _) = recorded(&bench, setup);
        server.stop();
    }
}

#[test]
fn empty_variables_count_as_none() {
    let bench = Bench::new(GOOD);
    let setup = bench.setup().env("ONEBIT_HYBRID_ELFS", "").env("ONEBIT_HYBRID_PREFILL", "");
    let (server, argv) = recorded(&bench, setup);
    assert_eq!(argv.len(), 6);
    server.stop();
}

#[test]
fn an_address_for_everyone_is_given_as_one_that_can_be_reached() {
    let bench = Bench::new(GOOD);
    bench.behave(RECORD);
    let server = bench.setup().flag("--host", "0.0.0.0").start();
    expect_handoff(&server, &Request::text("Where are you?"));
    let expected = format!("{URL}http://127.0.0.1:{}", server.address.port());
    assert!(bench.text("env").lines().any(|line| line == expected), "{expected}");
    server.stop();
}
