//! The whole flow with scripts as providers and a scripted engine.

use std::fs;
use std::path::Path;
use std::pin::Pin;

use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;

use super::testing::{Collected, is_alive, read_pids, script, supervisor_binary, until};
use super::*;
use crate::engine::{FinishReason, Piece, PromptReport, Report};

const REPLY: &str = r#"echo '{"n_tokens": 3, "argmax": 5, "prefill_ms": 1.5}'"#;

/// Restores files that hold `good`, evaluates anything else itself, and always answers `hi`.
struct Script {
    can_step_back: bool,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Script {
    fn answer(n_prompt: usize, restore: Option<Duration>) -> Events {
        let n_cached = restore.map_or(0, |_| n_prompt - 1);
        let prompt = PromptReport { n_prompt, n_cached, restore, evaluate: Duration::ZERO, argmax: Token(5) };
        let report = Report {
            finish: FinishReason::EndOfText,
            prompt,
            n_generated: 2,
            generate: Duration::ZERO,
            external_prefill: None,
            seed: 0,
        };
        let piece = |text: &str| Event::Piece(Piece { text: text.to_owned(), ..Piece::default() });
        let events = [Event::Prompt(prompt), piece(""), piece("hi"), Event::Done(report)];
        Box::pin(stream::iter(events.map(Ok)))
    }
}

impl Backend for Script {
    fn can_step_back(&self) -> bool {
        self.can_step_back
    }

    fn check(&self, prompt: &[Token], _: &GenerateOptions) -> Result<(), EngineError> {
        if prompt.is_empty() { Err(EngineError::EmptyPrompt) } else { Ok(()) }
    }

    fn held(&self, _: &[Token]) -> Pin<Box<dyn Future<Output = usize> + Send>> {
        Box::pin(std::future::ready(0))
    }

    fn generate(&self, prompt: &[Token], _: &GenerateOptions, n: usize) -> Result<Vec<Events>, EngineError> {
        self.calls.lock().push("generate");
        Ok((0..n).map(|_| Self::answer(prompt.len(), None)).collect())
    }

    fn restore_and_generate(
        &self,
        state_file: &Path,
        prompt: &[Token],
        _: &GenerateOptions,
        n: usize,
    ) -> Result<Vec<Events>, EngineError> {
        self.calls.lock().push("restore");
        if fs::read_to_string(state_file).is_ok_and(|text| text == "good") {
            return Ok((0..n).map(|_| Self::answer(prompt.len(), Some(Duration::from_millis(3)))).collect());
        }
        let refusal = Err(EngineError::Restore("the state file is\nbad".to_owned()));
        Ok(vec![Box::pin(stream::iter([refusal]))])
    }
}

struct Bench {
    hybrid: Hybrid,
    base: tempfile::TempDir,
    collected: Collected,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Bench {
    fn new(provider: &str) -> Self {
        Self::with(provider, true, None)
    }

    fn with(provider: &str, can_step_back: bool, supervisor: Option<PathBuf>) -> Self {
        Self::of(provider, can_step_back, |config| config.supervisor = supervisor)
    }

    fn of(provider: &str, can_step_back: bool, change: impl FnOnce(&mut HybridConfig)) -> Self {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("slots")).unwrap();
        let provider = provider.replace("BASE", base.path().to_str().unwrap());
        let collected = Collected::default();
        let mut config = HybridConfig {
            provider: (!provider.is_empty()).then(|| script(base.path(), "provider", &provider)),
            mode: PrefillMode::OneShot,
            elfs: None,
            model: "model.gguf".into(),
            timeout: Duration::from_secs(20),
            slot_dir: Some(base.path().join("slots")),
            supervisor: None,
            report: collected.sink(),
            handoff: HandoffMode::Always,
            min_tokens: 0,
            prefill_ahead: 0,
        };
        change(&mut config);
        let calls = Arc::default();
        let backend = Script { can_step_back, calls: Arc::clone(&calls) };
        let hybrid = Hybrid::with_backend(Box::new(backend), config, 0).unwrap();
        Self { hybrid, base, collected, calls }
    }

    async fn start(&self, n_tokens: i32) -> Result<Handoff, EngineError> {
        self.hybrid.generate((0..n_tokens).map(Token).collect(), GenerateOptions::default()).await
    }

    /// The events, which are the same however the prompt got in, and the final report.
    async fn answer(&self, n_tokens: i32) -> Report {
        let events: Vec<Event> = self.start(n_tokens).await.unwrap().map(Result::unwrap).collect().await;
        let [Event::Prompt(_), Event::Piece(_), Event::Piece(piece), Event::Done(report)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(piece.text, "hi");
        report.clone()
    }

    /// Files of runs that are still there.
    fn runs(&self) -> Vec<PathBuf> {
        let slots = fs::read_dir(self.base.path().join("slots")).unwrap();
        let inside = slots.flat_map(|slot| fs::read_dir(slot.unwrap().path()).unwrap());
        inside.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("lock")).collect()
    }
}

/// The scripted engine ranks 5 first.
#[tokio::test]
async fn what_became_of_prompts_is_counted() {
    for (argmax, n_disagreements) in [(5, 0), (6, 3)] {
        let reply = REPLY.replace("\"argmax\": 5", &format!("\"argmax\": {argmax}"));
        let bench = Bench::new(&format!("[ -e BASE/broken ] && exit 1; printf good > $4; {reply}"));
        for _ in 0..3 {
            bench.answer(3).await;
        }
        fs::write(bench.base.path().join("broken"), "").unwrap();
        bench.answer(3).await;
        let expected = Counts { handoffs: 3, fallbacks: 1, argmax_disagreements: n_disagreements };
        assert_eq!(bench.hybrid.counts(), expected);
    }
}

#[tokio::test]
async fn a_handoff() {
    for supervisor in [None, supervisor_binary()] {
        let bench = Bench::with(&format!("printf good > $4; {REPLY}"), true, supervisor);
        for _ in 0..2 {
            let report = bench.answer(3).await;
            assert!(bench.runs().is_empty());
            assert!(report.external_prefill.is_some() && report.prompt.n_cached == 2);
            let said = bench.collected.take();
            assert_eq!(said.len(), 1);
            let times = said[0].strip_prefix("onebit serve: hybrid: 3 prompt tokens: prefill ").unwrap();
            let numbers = times.replace(" ms, restore ", " ").replace(" ms, first byte ", " ").replace(" ms", "");
            let numbers: Vec<u32> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
            assert!(numbers[1] == 3 && numbers[2] >= numbers[0], "{}", said[0]);
        }
        assert_eq!(*bench.calls.lock(), ["restore", "restore"]);
        let slots = bench.base.path().join("slots");
        drop(bench.hybrid);
        assert_eq!(fs::read_dir(slots).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn every_failure_is_said_and_answered() {
    let check = async |provider: &str, reason: &str| {
        let bench = Bench::new(provider);
        let report = bench.answer(3).await;
        assert_eq!((report.external_prefill, report.prompt.n_cached), (None, 0));
        let line = format!("onebit serve: hybrid: {reason}; the backend prefills this request itself");
        assert_eq!(bench.collected.take(), [line]);
        assert!(bench.runs().is_empty());
    };
    check("", "no prefill provider (name one with --prefill-provider or ONEBIT_HYBRID_PREFILL)").await;
    check("exit 3", "the provider exited with status 3").await;
    check("echo hello", "the provider's reply is not JSON: hello").await;
    check(REPLY, "the provider wrote no state file").await;
    check(&format!("printf bad > $4; {REPLY}"), r"the state file is\nbad").await;
    let reply = REPLY.replace('3', "4");
    check(&format!("printf good > $4; {reply}"), "the provider evaluated 4 tokens, 3 were asked").await;
}

#[tokio::test]
async fn bad_requests_do_not_reach_the_provider() {
    let bench = Bench::new("touch BASE/started");
    assert!(matches!(bench.start(0).await, Err(EngineError::EmptyPrompt)));
    assert!(!bench.base.path().join("started").exists() && bench.collected.take().is_empty());
}

#[tokio::test]
async fn a_model_that_cannot_step_back_gets_all_but_the_last() {
    let provider = format!("cat $2 > BASE/ids; printf good > $4; {REPLY}");
    let bench = Bench::with(&provider, false, None);
    bench.answer(4).await;
    assert_eq!(*bench.calls.lock(), ["restore"]);
    assert_eq!(fs::read_to_string(bench.base.path().join("ids")).unwrap(), "0\n1\n2\n");
    bench.collected.take();
    bench.answer(1).await;
    let said = bench.collected.take();
    assert!(said[0].contains("nothing to hand over; the backend prefills this request itself"), "{said:?}");
}

#[tokio::test]
async fn one_at_a_time() {
    let bench = Bench::new(&format!("echo x >> BASE/runs; printf good > $4; {REPLY}"));
    let n_runs = || fs::read(bench.base.path().join("runs")).map_or(0, |runs| runs.len() / 2);
    let first = bench.start(3).await.unwrap();
    let mut second = Box::pin(bench.start(3));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!((&mut second).now_or_never().is_none() && n_runs() == 1);
    drop(first);
    let mut events = second.await.unwrap();
    assert_eq!(n_runs(), 2);
    // The end of the stream is enough, also while the caller keeps it.
    while events.next().await.is_some() {}
    bench.answer(3).await;
}

/// While one request is in the slot, the next one's provider runs; the third waits for its turn.
#[tokio::test]
async fn one_prompt_is_evaluated_ahead() {
    let provider = format!("cat $2 | wc -l >> BASE/runs; printf good > $4; {REPLY}");
    let provider = provider.replace("\"n_tokens\": 3", "\"n_tokens\": '$(cat $2 | wc -l)'");
    let bench = Bench::of(&provider, true, |config| config.prefill_ahead = 1);
    let runs = || fs::read_to_string(bench.base.path().join("runs")).unwrap_or_default().replace('\n', "");
    let first = bench.start(3).await.unwrap();
    let (mut second, mut third) = (Box::pin(bench.start(4)), Box::pin(bench.start(5)));
    tokio::select! {
        biased;
        _ = &mut second => panic!("the slot is not free"),
        _ = &mut third => panic!("the slot is not free"),
        () = until("the second's provider runs", || runs() == "34") => {}
    }
    // A client that waits leaves, and the one behind it moves up.
    drop(second);
    tokio::select! {
        _ = &mut third => panic!("the slot is not free"),
        () = until("the third's provider runs", || runs() == "345") => {}
    }
    assert_eq!(bench.runs().len(), 2, "the first's, of which no text was read, and the third's: the second's is gone");
    drop(first);
    let report = third.await.unwrap().filter_map(async |event| event.ok()).collect::<Vec<_>>().await;
    assert!(matches!(report.last(), Some(Event::Done(report)) if report.prompt.n_prompt == 5));
    assert_eq!(*bench.calls.lock(), ["restore", "restore"]);
}

/// Time in the queue is no part of the first byte's.
#[tokio::test]
async fn waiting_for_the_slot_is_not_in_the_line() {
    let bench = Bench::of(&format!("printf good > $4; {REPLY}"), true, |config| config.prefill_ahead = 1);
    let first = bench.start(3).await.unwrap();
    let second = bench.answer(3);
    let hold = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(first);
    };
    tokio::join!(second, hold);
    let said = bench.collected.take();
    let first_byte = said.last().unwrap().rsplit_once("first byte ").unwrap().1.strip_suffix(" ms").unwrap();
    assert!(first_byte.parse::<u32>().unwrap() < 2500, "{said:?}");
}

#[tokio::test]
async fn a_provider_that_keeps_failing_is_rested() {
    let bench = Bench::new("echo x >> BASE/runs; exit 7");
    for _ in 0..6 {
        bench.answer(3).await;
    }
    let said = bench.collected.take();
    let failure = "onebit serve: hybrid: the provider exited with status 7; the backend prefills this request itself";
    let rest = "onebit serve: handoff: the provider failed 3 times in a row and is tried once every 30 s now";
    assert_eq!(said, [failure, failure, failure, rest]);
    assert_eq!(fs::read(bench.base.path().join("runs")).unwrap(), b"x\nx\nx\n");
    // It is not the provider's fault that there is none.
    let bench = Bench::new("");
    for _ in 0..5 {
        bench.answer(3).await;
    }
    assert_eq!(bench.collected.take().len(), 5);
}

#[tokio::test]
async fn prompts_that_are_not_handed_over() {
    let provider = format!("echo x >> BASE/runs; printf good > $4; {REPLY}");
    let never = Bench::of(&provider, true, |config| config.handoff = HandoffMode::Never);
    let short = Bench::of(&provider, true, |config| config.min_tokens = 4);
    for bench in [never, short] {
        assert_eq!(bench.answer(3).await.external_prefill, None);
        assert!(bench.collected.take().is_empty() && !bench.base.path().join("runs").exists());
        assert_eq!(*bench.calls.lock(), ["generate"]);
    }
}

#[tokio::test]
async fn a_choice_is_said_with_its_reason() {
    let bench = Bench::of(&format!("printf good > $4; {REPLY}"), true, |config| config.handoff = HandoffMode::Auto);
    bench.answer(3).await;
    bench.answer(3).await;
    let said = bench.collected.take();
    let here = "onebit serve: handoff: 3 prompt tokens: evaluated here (3 tokens: to find out what they cost here)";
    assert_eq!(said[0], here);
    let there = "onebit serve: handoff: 3 prompt tokens: handed over (to find out what it costs)";
    assert_eq!(said[1], there);
    assert_eq!((said.len(), &*bench.calls.lock()), (3, &vec!["generate", "restore"]));
}

#[tokio::test]
async fn a_client_that_leaves() {
    for supervisor in [None, supervisor_binary()] {
        let provider = format!(
            "if [ ! -e BASE/pids ]; then sleep 1000 & echo $$ $! > BASE/pids; wait; fi; printf good > $4; {REPLY}"
        );
        let bench = Bench::with(&provider, true, supervisor);
        let pids = bench.base.path().join("pids");
        tokio::select! {
            _ = bench.start(3) => panic!("it ended"),
            () = until("the provider runs", || read_pids(&pids).len() == 2) => {}
        }
        // Its turn comes when the other's provider is dead.
        bench.answer(3).await;
        assert!(read_pids(&pids).into_iter().all(|pid| !is_alive(pid)) && bench.runs().is_empty());
        assert_eq!(bench.collected.take().len(), 1);
    }
}

#[tokio::test]
async fn closing() {
    for supervisor in [None, supervisor_binary()] {
        let bench = Bench::with("echo $$ > BASE/pids; exec sleep 1000", true, supervisor);
        let pids = bench.base.path().join("pids");
        let close = async {
            until("the provider runs", || read_pids(&pids).len() == 1).await;
            bench.hybrid.close().await;
            assert!(!is_alive(read_pids(&pids)[0]));
            assert_eq!(fs::read_dir(bench.base.path().join("slots")).unwrap().count(), 0);
        };
        let (outcome, ()) = tokio::join!(bench.start(3), close);
        assert!(matches!(outcome, Err(EngineError::Stopped)));
        assert!(matches!(bench.start(3).await, Err(EngineError::Stopped)));
        assert!(bench.collected.take().is_empty());
    }
}

#[test]
fn handles_travel() {
    fn travels<T: Send + Sync + 'static>() {}
    fn is_sendable<T: Send + Unpin + 'static>(value: T) -> T {
        value
    }
    travels::<Hybrid>();
    let generate = |hybrid: Hybrid| {
        is_sendable(Box::pin(async move { hybrid.generate(vec![], GenerateOptions::default()).await.map(is_sendable) }))
    };
    let _ = generate;
}
