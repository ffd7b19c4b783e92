//! Scripts as resident providers, with a supervisor and without.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::hybrid::slot_dir::SlotDir;
use crate::hybrid::testing::{Collected, is_alive, read_pids, script, supervisor_binary, until};
use crate::hybrid::{HybridConfig, PrefillMode};
use crate::llama::Token;

const IDS: [Token; 3] = [Token(11), Token(-1), Token(32000)];

/// Answers every request, and writes a state file that is none.
const GOOD: &str = r#"echo $$ >> BASE/pids; sleep 1000 & echo $! >> BASE/pids
    while read -r line; do
        id=${line#*\"id\":}; out=${line#*\"out\":\"}; printf state > "${out%%\"*}"
        echo "{\"id\":${id%%,*},\"n_tokens\":3,\"argmax\":5,\"prefill_ms\":1.5}"
    done"#;

struct Bench {
    base: tempfile::TempDir,
    slot_dir: SlotDir,
    resident: Resident,
}

impl Bench {
    /// One for each way to run a provider that can be tested here.
    fn all(body: &str) -> Vec<Bench> {
        let ways = [Some(None), supervisor_binary().map(Some)].into_iter().flatten();
        ways.map(|supervisor| Self::new(body, supervisor)).collect()
    }

    fn new(body: &str, supervisor: Option<PathBuf>) -> Self {
        let base = tempfile::tempdir().unwrap();
        let body = body.replace("BASE", base.path().to_str().unwrap());
        let config = HybridConfig {
            provider: Some(script(base.path(), "provider", &body)),
            mode: PrefillMode::Resident,
            elfs: None,
            model: "some/model.gguf".into(),
            timeout: Duration::from_secs(20),
            slot_dir: None,
            supervisor,
            report: Collected::default().sink(),
            handoff: crate::hybrid::HandoffMode::Always,
            min_tokens: 0,
            prefill_ahead: 0,
        };
        let resident = Resident::new(Runner::new(&config).unwrap().unwrap(), Rules::Serving);
        let slot_dir = SlotDir::new(Some(base.path()), 0).unwrap();
        Self { base, slot_dir, resident }
    }

    async fn run(&self) -> Result<Finished, HybridError> {
        let run_dir = self.slot_dir.new_run(&IDS)?;
        let finished = self.resident.run(&run_dir, IDS.len(), None, &CancellationToken::new()).await?;
        run_dir.check_state_file()?;
        Ok(finished)
    }

    async fn is_gone(&self) {
        for pid in read_pids(&self.base.path().join("pids")) {
            until("it is dead", || !is_alive(pid)).await;
        }
    }
}

#[tokio::test]
async fn one_process_answers_and_ends_when_closed() {
    for bench in Bench::all(GOOD) {
        for _ in 0..3 {
            let reply = bench.run().await.unwrap().reply;
            assert_eq!((reply.n_tokens, reply.argmax, reply.prefill_ms), (3, 5, 1.5));
        }
        bench.resident.close().await;
        let tally = bench.resident.tally();
        assert_eq!((tally.n_starts, tally.n_noise, tally.n_unasked, tally.failure), (1, 0, 0, None));
        assert_eq!(tally.end, Some(HybridError::Exited { code: 0, stderr: vec![] }));
        bench.is_gone().await;
        assert_eq!(bench.run().await, Err(HybridError::Stopped));
        bench.resident.close().await;
    }
}

#[tokio::test]
async fn dropping_it_ends_the_process() {
    for bench in Bench::all(GOOD) {
        bench.run().await.unwrap();
        let Bench { base, slot_dir, resident } = bench;
        drop(resident);
        let pids = read_pids(&base.path().join("pids"));
        assert_eq!(pids.len(), 2);
        for pid in pids {
            until("it is dead", || !is_alive(pid)).await;
        }
        drop(slot_dir);
    }
}

#[tokio::test]
async fn a_failure_is_followed_by_a_pause() {
    for bench in Bench::all("read -r line; echo oh >&2; exit 7") {
        let exited = HybridError::Exited { code: 7, stderr: vec!["oh".to_owned()] };
        assert_eq!(bench.run().await, Err(exited.clone()));
        let Err(HybridError::Resting { pause, reason }) = bench.run().await else { panic!("not resting") };
        assert!(pause <= Duration::from_millis(500) && *reason == exited, "{pause:?} {reason}");
        assert_eq!(bench.resident.tally().n_starts, 1);
    }
}

/// Nobody waits for the answer, but the files stay until it is there.
#[tokio::test]
async fn a_request_that_is_called_back_is_worked_on_to_its_end() {
    let slow =
        GOOD.replace("id=${line", "echo got >> BASE/got; while [ ! -e BASE/go ]; do sleep 0.01; done; id=${line");
    for bench in Bench::all(&slow) {
        let cancel = CancellationToken::new();
        let run_dir = bench.slot_dir.new_run(&IDS).unwrap();
        let path = run_dir.path().to_owned();
        let got = bench.base.path().join("got");
        let (outcome, ()) = tokio::join!(bench.resident.run(&run_dir, 3, None, &cancel), async {
            until("it has the request", || got.exists()).await;
            cancel.cancel();
        });
        assert_eq!(outcome, Err(HybridError::Stopped));
        drop(run_dir);
        assert!(path.exists());
        std::fs::write(bench.base.path().join("go"), "").unwrap();
        bench.run().await.unwrap();
        assert!(!path.exists());
        assert_eq!(bench.resident.tally().n_starts, 1);
    }
}
