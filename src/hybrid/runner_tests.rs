//! Real scripts as providers, with and without a supervisor.

use super::super::PrefillMode;
use super::super::error::HybridError;
use super::super::slot_dir::SlotDir;
use super::super::testing::{Collected, is_alive, read_pids, script, supervisor_binary, until};
use super::*;
use crate::llama::Token;

const IDS: [Token; 3] = [Token(11), Token(-1), Token(32000)];
const REPLY: &str = r#"echo '{"n_tokens": 3, "argmax": 5, "prefill_ms": 1.5}'"#;

/// A directory for scripts and slots, and a runner in it.
struct Bench {
    base: tempfile::TempDir,
    collected: Collected,
    supervisor: Option<PathBuf>,
}

impl Bench {
    /// One for each way to run a provider that can be tested here.
    fn all() -> Vec<Bench> {
        let ways = [Some(None), supervisor_binary().map(Some)].into_iter().flatten();
        let bench =
            |supervisor| Bench { base: tempfile::tempdir().unwrap(), collected: Collected::default(), supervisor };
        ways.map(bench).collect()
    }

    fn config(&self, body: &str) -> HybridConfig {
        HybridConfig {
            provider: Some(script(self.base.path(), "provider", body)),
            mode: PrefillMode::OneShot,
            elfs: None,
            model: "some/model.gguf".into(),
            timeout: Duration::from_secs(20),
            slot_dir: None,
            supervisor: self.supervisor.clone(),
            report: self.collected.sink(),
            handoff: crate::hybrid::HandoffMode::Always,
            min_tokens: 0,
            prefill_ahead: 0,
        }
    }

    async fn run(&self, config: &HybridConfig) -> Result<Finished, HybridError> {
        self.run_until(config, &CancellationToken::new()).await
    }

    async fn run_until(&self, config: &HybridConfig, cancel: &CancellationToken) -> Result<Finished, HybridError> {
        let slot_dir = SlotDir::new(Some(self.base.path()), 0)?;
        let run_dir = slot_dir.new_run(&IDS)?;
        let runner = Runner::new(config).unwrap().unwrap();
        let finished = runner.run(&run_dir, IDS.len(), Some("http://127.0.0.1:8000".to_owned()), cancel).await?;
        run_dir.check_state_file()?;
        Ok(finished)
    }
}

/// Runs `body` both ways and compares the outcome's text, `ok` for a good one.
async fn check(body: &str, expected: &str) {
    for bench in Bench::all() {
        let outcome = bench.run(&bench.config(body)).await;
        let text = outcome.map_or_else(|reason| reason.to_string(), |_| "ok".to_owned());
        assert_eq!(text, expected, "supervised: {}", bench.supervisor.is_some());
    }
}

#[tokio::test]
async fn what_the_provider_sees() {
    for bench in Bench::all() {
        let seen = bench.base.path().join("seen");
        let body = format!(
            r#"{{ printf '%s\n' "$@"; echo "$ONEBIT_HYBRID_BACKEND_URL"; pwd; stat -c %a . "$2"; cat "$2"; cat; }} > {}
            printf state > "$4"; {REPLY}"#,
            seen.display()
        );
        let config = HybridConfig { elfs: Some("elfs".into()), ..bench.config(&body) };
        let finished = bench.run(&config).await.unwrap();
        assert_eq!((finished.reply.argmax, finished.reply.prefill_ms), (5, 1.5));
        let seen = std::fs::read_to_string(seen).unwrap();
        let lines: Vec<_> = seen.lines().collect();
        let cwd = std::env::current_dir().unwrap();
        let model = cwd.join("some/model.gguf");
        let elfs = cwd.join("elfs");
        assert_eq!(lines[0], "--tokens");
        assert_eq!(lines[2], "--out");
        assert!(!lines[3].contains('/'), "{}", lines[3]);
        assert_eq!(
            lines[4..9],
            ["--model", model.to_str().unwrap(), "--elfs", elfs.to_str().unwrap(), "http://127.0.0.1:8000"]
        );
        assert_eq!(Path::new(lines[1]).parent(), Some(Path::new(lines[9])));
        assert_eq!(lines[10..], ["700", "600", "11", "-1", "32000"]);
    }
}

#[tokio::test]
async fn outcomes() {
    check(&format!("printf state > $4; {REPLY}"), "ok").await;
    check(&format!("echo hello; printf state > $4; echo; {REPLY}; echo"), "ok").await;
    check("echo one >&2; printf 'no NPU' >&2; exit 3", "the provider exited with status 3: one | no NPU").await;
    check("kill -9 $$", "the provider was killed by signal 9 (SIGKILL)").await;
    check("echo bye >&2; kill -15 $$", "the provider was killed by signal 15 (SIGTERM): bye").await;
    check("echo done", "the provider's reply is not JSON: done").await;
    check("exit 0", "the provider wrote no reply to stdout").await;
    check(REPLY, "the provider wrote no state file").await;
    check(&format!("ln -s /etc/passwd $4; {REPLY}"), "the provider's state file is a symbolic link").await;
    let reply = REPLY.replace('3', "2");
    check(&format!("printf state > $4; {reply}"), "the provider evaluated 2 tokens, 3 were asked").await;
}

#[tokio::test]
async fn programs_that_do_not_start() {
    for bench in Bench::all() {
        let plain_file = bench.base.path().join("plain");
        std::fs::write(&plain_file, "x").unwrap();
        for (program, reason) in [
            ("/x/y", "No such file or directory"),
            ("no-such-prefill-provider", "No such file or directory"),
            (plain_file.to_str().unwrap(), "Permission denied"),
        ] {
            let config = HybridConfig { provider: Some(program.into()), ..bench.config("") };
            let error = bench.run(&config).await.unwrap_err();
            assert_eq!(error.to_string(), format!("cannot start the provider {program}: {reason}"));
        }
    }
    let bench = &Bench::all()[0];
    let config = HybridConfig { supervisor: Some("/x/y".into()), ..bench.config("") };
    let error = bench.run(&config).await.unwrap_err();
    let expected = "the provider's supervisor failed: it does not start: No such file or directory";
    assert_eq!(error.to_string(), expected);
    let config = HybridConfig { supervisor: Some("true".into()), ..bench.config("") };
    let error = bench.run(&config).await.unwrap_err();
    assert_eq!(error.to_string(), "the provider's supervisor failed: it ended before the provider");
}

#[test]
fn programs_are_found_as_a_shell_finds_them() {
    let cwd = std::env::current_dir().unwrap();
    for (given, expected) in
        [("sh", PathBuf::from("sh")), ("./p", cwd.join("p")), ("a/p", cwd.join("a/p")), ("/a/p", "/a/p".into())]
    {
        assert_eq!(resolve_program(given).unwrap(), expected);
    }
}

#[tokio::test]
async fn noise_on_both_pipes() {
    let noise = "python3 -c \"import sys; a = 'x' * 99 + '\\n'; \
        [f.write(a * 20000) for f in (sys.stdout, sys.stderr)]; sys.stderr.write('y' * 1500000)\"";
    check(&format!("printf state > $4; {noise}; {REPLY}"), "ok").await;
}

#[tokio::test]
async fn a_late_provider_is_ended_with_its_children() {
    for bench in Bench::all() {
        let pids = bench.base.path().join("pids");
        let sleeper = script(bench.base.path(), "sleeper", &format!("echo $$ >> {}; exec sleep 1000", pids.display()));
        let sleeper = sleeper.display();
        // Without a supervisor, a child in a session of its own is out of reach.
        let escapes = format!("setsid {sleeper} & setsid sh -c 'setsid {sleeper} & {sleeper} & wait' &");
        let (escapes, n_pids) = if bench.supervisor.is_some() { (&*escapes, 5) } else { ("", 2) };
        let pids_path = pids.display();
        let body = format!(
            "trap '' TERM; echo $$ >> {pids_path}; {sleeper} & {escapes} echo waiting >&2; while :; do sleep 1; done"
        );
        let config = HybridConfig { timeout: Duration::from_millis(1500), ..bench.config(&body) };
        let started = Instant::now();
        let error = bench.run(&config).await.unwrap_err();
        assert_eq!(error.to_string(), "the provider did not finish within 1.5 s: waiting");
        assert!((1900..6000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
        assert_eq!(read_pids(&pids).len(), n_pids);
        for pid in read_pids(&pids) {
            until("it is dead", || !is_alive(pid)).await;
        }
    }
}

#[tokio::test]
async fn sigterm_is_enough_for_a_polite_one() {
    for bench in Bench::all() {
        let body = "trap 'echo tidy >&2; exit 0' TERM; while :; do :; done";
        let config = HybridConfig { timeout: Duration::from_millis(300), ..bench.config(body) };
        let error = bench.run(&config).await.unwrap_err();
        assert_eq!(error.to_string(), "the provider did not finish within 0.3 s: tidy");
    }
}

#[tokio::test]
async fn a_grandchild_that_keeps_the_pipes_is_not_waited_for() {
    for bench in Bench::all() {
        let supervised = bench.supervisor.is_some();
        let pids = bench.base.path().join("pids");
        let prefix = if supervised { "setsid " } else { "" };
        let body = format!(
            "{prefix}sh -c 'echo $$ > {pids}; while :; do echo noise; sleep 0.01; done' & \
            while [ ! -s {pids} ]; do sleep 0.01; done; printf state > $4; {REPLY}",
            pids = pids.display()
        );
        // The grandchild may write between the reply and the end of the provider, so the outcome is one of two.
        let started = Instant::now();
        match bench.run(&bench.config(&body)).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.to_string(), "the provider's reply is not JSON: noise"),
        }
        assert!(started.elapsed() < Duration::from_secs(3));
        let pid = read_pids(&pids)[0];
        until("the grandchild is dead", || !is_alive(pid)).await;
    }
}

#[tokio::test]
async fn cancelling_and_dropping_kill() {
    for bench in Bench::all() {
        for drops in [false, true] {
            let pids = bench.base.path().join(format!("pids-{drops}"));
            let body = format!("trap '' TERM; sleep 1000 & echo $$ $! > {}; wait", pids.display());
            let config = bench.config(&body);
            let cancel = CancellationToken::new();
            let ready = until("it runs", || pids.exists() && !read_pids(&pids).is_empty());
            let run = bench.run_until(&config, &cancel);
            if drops {
                tokio::select! { _ = run => panic!("it ended"), () = ready => {} }
            } else {
                let (outcome, ()) = tokio::join!(run, async {
                    ready.await;
                    cancel.cancel()
                });
                assert_eq!(outcome, Err(HybridError::Stopped));
            }
            for pid in read_pids(&pids) {
                until("it is dead", || !is_alive(pid)).await;
            }
        }
    }
}

#[tokio::test]
async fn a_supervisor_that_is_killed() {
    for bench in Bench::all().into_iter().filter(|bench| bench.supervisor.is_some()) {
        let pids = bench.base.path().join("pids");
        let body = format!("sleep 1000 & echo $$ $! > {}; sleep 0.2; kill -9 $PPID; wait", pids.display());
        let error = bench.run(&bench.config(&body)).await.unwrap_err();
        assert_eq!(error.to_string(), "the provider's supervisor failed: it ended before the provider");
        for pid in read_pids(&pids) {
            until("it is dead", || !is_alive(pid)).await;
        }
    }
}
