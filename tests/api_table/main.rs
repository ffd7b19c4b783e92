//! Request bodies, good and bad, and what `onebit serve` answers: `rows.txt`, a line for each.
//!
//! ```text
//! STATUS [METHOD] PATH BODY => CHECK CHECK ...
//! ```
//!
//! The method is POST where none is given. The body is sent as it stands. A check is about the reply, which is the JSON
//! body, or of a stream an object with `events` (an array) and `done` (whether `[DONE]` came): `a/0/b=JSON` is equal,
//! `a/b~text` contains (`_` stands for a space), `a/b` is there and not null, `!a/b` is not there or null. `-1` is the
//! last of an array.

#[path = "../common/mod.rs"]
mod common;

use std::net::SocketAddr;

use common::http::{self, Reply};
use common::server::Setup;
use serde_json::{Value, json};

const ROWS: &str = include_str!("rows.txt");

/// The least number of rows that the table is to have.
const N_ROWS: usize = 200;

struct Row<'a> {
    line: usize,
    status: u16,
    method: &'a str,
    path: &'a str,
    body: &'a str,
    checks: Vec<&'a str>,
}

impl<'a> Row<'a> {
    fn parse(line: usize, text: &'a str) -> Self {
        let bad = || -> ! { panic!("rows.txt:{line}: cannot read {text:?}") };
        let Some((status, rest)) = text.split_once(' ') else { bad() };
        let (request, checks) = rest.split_once(" => ").unwrap_or((rest, ""));
        let (method, request) = match request.split_once(' ') {
            Some((method, request)) if !method.starts_with('/') => (method, request),
            _ => ("POST", request),
        };
        let (path, body) = request.split_once(' ').unwrap_or((request, ""));
        let Ok(status) = status.parse() else { bad() };
        Self { line, status, method, path, body, checks: checks.split_whitespace().collect() }
    }

    /// What is wrong with the reply, if anything.
    fn problem(&self, reply: &Reply) -> Option<String> {
        if reply.status != self.status {
            return Some(format!("status {}", reply.status));
        }
        let json = document(reply)?;
        if self.status >= 400
            && let Some(problem) = error_problem(&json, self.status)
        {
            return Some(problem);
        }
        self.checks.iter().find(|check| !holds(&json, check)).map(|check| format!("not so: {check}"))
    }
}

/// The reply as JSON; `None` when it is of another type.
fn document(reply: &Reply) -> Option<Value> {
    if reply.is_event_stream() {
        // A line each, after the event's name where there is one.
        let mut events: Vec<&str> = reply.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let done = events.last() == Some(&"[DONE]");
        if done {
            events.pop();
        }
        let events: Vec<Value> = events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect();
        return Some(json!({"events": events, "done": done}));
    }
    reply.content_type.starts_with("application/json").then(|| reply.json())
}

/// Every error has the same shape, and its number is the status.
fn error_problem(json: &Value, status: u16) -> Option<String> {
    let error = &json["error"];
    let is_whole = error["message"].as_str().is_some_and(|message| !message.is_empty())
        && error["type"].is_string()
        && error.get("param").is_some()
        && error["code"] == status;
    (!is_whole).then(|| format!("an error without its shape: {json}"))
}

fn holds(json: &Value, check: &str) -> bool {
    if let Some(path) = check.strip_prefix('!') {
        return at(json, path).is_null();
    }
    match check.find(['=', '~']) {
        None => !at(json, check).is_null(),
        Some(end) => {
            let (path, expected) = (at(json, &check[..end]), &check[end + 1..]);
            if check[end..].starts_with('=') {
                return *path
                    == serde_json::from_str::<Value>(expected).unwrap_or_else(|_| panic!("{check} is no JSON"));
            }
            let text = path.as_str().map_or_else(|| path.to_string(), str::to_owned);
            text.contains(&expected.replace('_', " ")) || text.contains(expected)
        }
    }
}

fn at<'a>(json: &'a Value, path: &str) -> &'a Value {
    path.split('/').fold(json, |value, step| match (value, step.parse::<isize>()) {
        (Value::Array(items), Ok(index)) => {
            let index = if index < 0 { items.len().checked_add_signed(index) } else { index.try_into().ok() };
            index.and_then(|index| items.get(index)).unwrap_or(&Value::Null)
        }
        _ => &value[step],
    })
}

fn rows() -> Vec<Row<'static>> {
    let lines = ROWS.lines().enumerate().map(|(index, text)| (index + 1, text.trim()));
    lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#')).map(|(n, text)| Row::parse(n, text)).collect()
}

fn check(address: SocketAddr, row: &Row) -> Result<(), String> {
    let reply = http::raw(address, row.method, row.path, row.body.as_bytes()).map_err(|error| error.to_string())?;
    match row.problem(&reply) {
        None => Ok(()),
        Some(problem) => Err(format!("{problem}; the body: {:.400}", reply.body)),
    }
}

#[test]
fn every_body_has_its_status_and_shape() {
    // A seed, since some draws of a model of bytes end in the middle of a character.
    let server = Setup::cpu()
        .flag("--ctx-size", "512")
        .flag("--parallel", "2")
        .flag("--alias", "tiny")
        .flag("--seed", "1")
        .start();
    let rows = rows();
    assert!(rows.len() >= N_ROWS, "{} rows", rows.len());
    let failures: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let problem = check(server.address, row).err()?;
            Some(format!("rows.txt:{}: {} {} {:.200}\n    {problem}", row.line, row.method, row.path, row.body))
        })
        .collect();
    assert!(failures.is_empty(), "{} of {} rows:\n{}", failures.len(), rows.len(), failures.join("\n"));
    // None of it left anything behind.
    let slots = http::exchange(server.address, "/slots", None).unwrap().json();
    assert!(slots.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false), "{slots}");
    server.stop();
}

#[test]
fn checks_can_fail() {
    let json = json!({"a": [{"b": "one two"}, {"b": null}], "c": 1});
    for (check, expected) in [
        ("a/0/b", true),
        ("a/1/b", false),
        ("!a/1/b", true),
        ("!a/0/b", false),
        ("a/-1/b=null", true),
        ("c=1", true),
        ("c=2", false),
        ("a/0/b~one_two", true),
        ("a/0/b~three", false),
        ("nowhere/0", false),
    ] {
        assert_eq!(holds(&json, check), expected, "{check}");
    }
}
