//! What does not start, and says why.

use std::fs;
use std::path::Path;

use onebit::llama::gguf::Writer;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use crate::common::server::Setup;
use crate::common::{http, model};

/// Lines about the start that are no refusal.
fn is_progress(line: &str) -> bool {
    line.starts_with("onebit serve: listening on ") || line.starts_with("onebit serve: loading ")
}

#[test]
fn flags_that_hybrid_refuses() {
    let rows: [(&str, &[&str]); 10] = [
        ("--mtp", &[]),
        ("--dflash", &[]),
        ("--mmproj", &["X"]),
        ("--moe-slots", &["4"]),
        ("--parallel", &["2"]),
        ("--embed", &[]),
        ("--rerank", &[]),
        ("--embedding", &[]),
        ("--reranking", &[]),
        ("--pm", &[]),
    ];
    for (flag, values) in rows {
        // Decided before the model is looked at.
        let args =
            ["--model", "/no/such/model.gguf", "--device", "hybrid", flag].into_iter().chain(values.iter().copied());
        let (code, said) = Setup::bare(args).run();
        assert_eq!((code, said.len()), (Some(2), 1), "{flag}: {said:?}");
        let line = said[0].strip_prefix("onebit serve: ").expect("says who speaks");
        assert!(line.split([' ', ':']).next() == Some(flag) && line.contains("hybrid"), "{flag}: {line}");
    }
}

#[test]
fn print_backend() {
    let args = ["--model", "/no/such/model.gguf", "--print-backend", "--device"];
    let (code, said) = Setup::bare(args.into_iter().chain(["hybrid"])).run();
    assert_eq!(code, Some(5));
    assert!(said.len() == 1 && said[0].contains("needs serve"), "{said:?}");
    let (code, said) = Setup::bare(args.into_iter().chain(["cpu"])).run();
    assert_eq!((code, said.len()), (Some(0), 0), "{said:?}");
}

#[test]
fn timeouts_that_are_none() {
    for timeout in ["0", "-1", "nan", "inf", "soon"] {
        let args = ["--model", "/no/such/model.gguf", "--device", "hybrid", &format!("--prefill-timeout={timeout}")];
        let (code, said) = Setup::bare(args).run();
        assert_eq!(code, Some(2), "{timeout}: {said:?}");
        assert!(said[0].contains("--prefill-timeout"), "{timeout}: {said:?}");
    }
}

/// A model that does not load: one line with the reason, which names the file, and exit code 3.
fn check_model(path: &Path, expected: &str) {
    check_load(Setup::bare(["--port", "0", "--device", "cpu"]).flag("--model", path), path.to_str().unwrap(), expected);
}

fn check_load(setup: Setup, names: &str, expected: &str) {
    let (code, said) = setup.run();
    let lines: Vec<_> = said.iter().filter(|line| !is_progress(line)).collect();
    assert_eq!(code, Some(3), "{said:?}");
    assert_eq!(lines.len(), 1, "one line: {said:?}");
    assert!(lines[0].starts_with("onebit serve: "), "{lines:?}");
    assert!(lines[0].contains(names) && lines[0].contains(expected), "{lines:?}, expected {expected:?}");
}

#[test]
fn models_that_do_not_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    check_model(&path("missing.gguf"), "there is no such file");
    check_model(folder.path(), "it is a folder");

    fs::write(path("notes.gguf"), "Dear diary,\n").unwrap();
    check_model(&path("notes.gguf"), "it is not a GGUF file");
    fs::write(path("empty.gguf"), "").unwrap();
    check_model(&path("empty.gguf"), "it is not a GGUF file");

    mknodat(CWD, path("pipe.gguf"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    check_model(&path("pipe.gguf"), "it is a device or a pipe");

    let whole = fs::read(model::tiny()).unwrap();
    for n_bytes in [10, 1000, whole.len() / 2, whole.len() - 1000] {
        fs::write(path("half.gguf"), &whole[..n_bytes]).unwrap();
        check_model(&path("half.gguf"), "");
    }

    let mut gguf = Writer::new().unwrap();
    gguf.text("general.architecture", "abacus").unwrap();
    gguf.write(&path("abacus.gguf")).unwrap();
    check_model(&path("abacus.gguf"), "unknown model architecture: 'abacus'");
}

#[test]
fn rpc_servers_that_are_none() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (endpoint, expected) in [("garbage", "expected HOST:PORT"), (&*unused, "refused")] {
        let (code, said) = Setup::cpu().flag("--rpc", endpoint).run();
        let lines: Vec<_> = said.iter().filter(|line| !is_progress(line)).collect();
        assert_eq!((code, lines.len()), (Some(2), 1), "{said:?}");
        assert!(lines[0].contains(endpoint) && lines[0].contains(expected), "{lines:?}");
    }
}

#[test]
fn a_context_that_memory_cannot_hold() {
    check_load(Setup::cpu().flag("--ctx-size", "2000000000"), "2000000000 tokens", "--ctx-size");
}

#[test]
fn hybrid_refuses_such_models_too() {
    let setup = Setup::bare(["--port", "0", "--device", "hybrid", "--model", "/no/such/model.gguf"]);
    check_load(setup, "/no/such/model.gguf", "there is no such file");
}

#[test]
fn while_the_model_loads_every_route_says_so() {
    // An RPC server that takes calls and never answers keeps the load waiting.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let server = Setup::device("hybrid").flag("--rpc", address).listen();
    let body = json!({"messages": [{"role": "user", "content": "Ready?"}]});
    for (route, body) in
        [("/health", None), ("/v1/health", None), ("/v1/models", None), ("/v1/chat/completions", Some(&body))]
    {
        let reply = http::exchange(server.address, route, body).unwrap();
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!(503)), "{route}");
    }
    // It ends when asked, whatever it waits for.
    server.stop();
}
