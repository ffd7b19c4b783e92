//! However a request or a server ends, nothing of the provider is left.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::bench::{Bench, GOOD, expect_handoff};
use crate::common::http::Exchange;
use crate::common::model;
use crate::common::process::{is_alive, until, until_gone, written_pids};
use crate::common::request::{Answer, Request, cpu_answer};
use crate::common::server::{HybridLine, Server, Setup};

/// A provider that never ends by itself, with a child in its group and one in a session of its own.
const HANG: &str = "echo $$ > \"$bench/pids\"; sleep 1000 & echo $! >> \"$bench/pids\"; \
                    setsid sleep 1000 & echo $! >> \"$bench/pids\"; while :; do wait; sleep 1; done";

/// A few seconds: what is killed at once may take so long on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// The process ids of a [`HANG`] that runs; the next one writes its own.
fn running(bench: &Bench) -> Vec<i32> {
    let pids = written_pids(&bench.path("pids"), 3);
    std::fs::remove_file(bench.path("pids")).unwrap();
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    pids
}

#[test]
fn a_client_that_hangs_up_ends_its_provider() {
    let bench = Bench::new(HANG);
    let server = bench.start();
    let request = Request::text("Never mind.");
    for request in [request.clone(), request.clone().streamed(), Request::chat("Never mind.").streamed()] {
        bench.behave(HANG);
        let exchange = server.send(&request);
        let pids = running(&bench);
        drop(exchange);
        until_gone(&pids, AT_ONCE);
        bench.behave(GOOD);
        expect_handoff(&server, &request);
    }
    server.stop();
}

#[test]
fn a_client_that_hangs_up_while_it_waits_is_forgotten() {
    let bench = Bench::new(HANG);
    let server = bench.start();
    let request = Request::text("First come, first served.");
    let first = server.send(&request);
    let pids = running(&bench);
    let second = server.send(&request);
    drop(second);
    bench.behave(GOOD);
    drop(first);
    until_gone(&pids, AT_ONCE);
    expect_handoff(&server, &request);
    server.stop();
}

#[test]
fn a_server_that_ends_takes_the_provider_with_it() {
    let bench = Bench::new(HANG);
    let server = bench.start();
    let exchange = server.send(&Request::text("Not to be answered."));
    let pids = running(&bench);
    let started = Instant::now();
    // The request has ten seconds to finish, which it does not.
    server.stop();
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "gone before the server is");
    assert!(bench.slot_dirs().is_empty());
    let reply = exchange.finish().unwrap();
    assert_eq!(reply.status, 503, "{}", reply.body);
}

#[test]
fn a_killed_supervisor_is_a_failure_like_others() {
    let bench = Bench::new("echo $$ > \"$bench/pids\"; sleep 1000 & echo $! >> \"$bench/pids\"; wait");
    let server = bench.start();
    let request = Request::text("Who watches?");
    let expected = cpu_answer(&request);
    let exchange = server.send(&request);
    let pids = written_pids(&bench.path("pids"), 2);
    kill_process(Pid::from_raw(parent(pids[0])).unwrap(), Signal::KILL).unwrap();
    assert_eq!(Answer::read(&exchange.finish().unwrap()).visible(), expected.visible());
    let reason = "the provider's supervisor failed: it ended before the provider";
    assert_eq!(server.hybrid_line(), HybridLine::Fallback(reason.to_owned()));
    until_gone(&pids, AT_ONCE);
    bench.behave(GOOD);
    expect_handoff(&server, &request);
    server.stop();
}

#[test]
fn a_killed_server_leaves_nothing_but_what_the_next_one_removes() {
    let bench = Bench::new(HANG);
    let server = bench.start();
    let exchange = server.send(&Request::text("Not to be answered."));
    let pids = running(&bench);
    let supervisor = parent(pids[0]);
    assert_ne!(supervisor, server.pid(), "a process of its own watches over the provider");
    server.signal(Signal::KILL);
    until_gone(&pids, AT_ONCE);
    until_gone(&[supervisor], AT_ONCE);
    server.wait();
    assert!(exchange.finish().is_err());

    let stale = bench.slot_dirs();
    assert_eq!(stale.len(), 1);
    bench.behave(GOOD);
    let next = bench.start();
    assert!(!stale[0].exists());
    expect_handoff(&next, &Request::text("Business as usual."));
    next.stop();
    assert!(bench.slot_dirs().is_empty());
}

/// Field 4 of `/proc/PID/stat`.
fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(1).unwrap().parse().unwrap()
}

/// A server whose context is so long that a generation in it goes on until it is stopped.
fn with_long_context(setup: Setup) -> Server {
    let n_ctx = model::LONG_CONTEXT.to_string();
    setup.replace("--model", model::tiny_with_long_context()).flag("--ctx-size", n_ctx).start()
}

/// A generation that has begun and does not end by itself.
fn endless(server: &Server) -> Exchange {
    let mut exchange = server.send(&Request::text("Go on.").streamed().with("max_tokens", (-1).into()));
    exchange.read_until("data: ").unwrap();
    exchange
}

#[test]
fn a_client_that_hangs_up_ends_its_generation() {
    let bench = Bench::new(GOOD);
    for (setup, is_hybrid) in [(Setup::cpu(), false), (bench.setup(), true)] {
        let server = with_long_context(setup);
        drop(endless(&server));
        // There is one sequence: an answer comes when the other generation has ended.
        let started = Instant::now();
        server.ask(&Request::text("My turn."));
        assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
        for _ in 0..if is_hybrid { 2 } else { 0 } {
            assert!(matches!(server.hybrid_line(), HybridLine::Handoff { .. }));
        }
        server.stop();
    }
}

#[test]
fn a_server_that_ends_cuts_what_does_not_end() {
    let server = with_long_context(Setup::cpu());
    // Read as it comes: ten seconds of text are more than a socket holds.
    let exchange = endless(&server);
    let client = std::thread::spawn(move || exchange.finish());
    let started = Instant::now();
    server.signal(Signal::TERM);
    until("new connections are refused", AT_ONCE, || TcpStream::connect(server.address).is_err());
    let status = server.wait();
    let elapsed = started.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!((9..15).contains(&elapsed.as_secs()), "{elapsed:?}");
    let reply = client.join().unwrap().unwrap();
    let last: serde_json::Value = serde_json::from_str(reply.events().last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], 503, "{last}");
}

#[test]
fn a_server_that_ends_lets_what_runs_finish() {
    let server = with_long_context(Setup::cpu());
    let request = Request::text("Go on.").streamed().with("max_tokens", 2000.into());
    let mut exchange = server.send(&request);
    exchange.read_until("data: ").unwrap();
    server.signal(Signal::TERM);
    let reply = exchange.finish().unwrap();
    assert_eq!(reply.events().last(), Some(&"[DONE]"));
    assert_eq!(server.wait().code(), Some(0));
}
