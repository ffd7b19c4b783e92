//! Chat templates of many model families render here as in llama-server: `tests/templates` has the templates, written
//! from what is published about each format, the conversations (`cases/`), and llama-server's renders (`golden/`, made by
//! `scripts/golden-templates`; `null` where it refuses the conversation).

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::bench::entries;
use common::http;
use common::server::Setup;
use serde_json::Value;

/// Families that there are at least.
const N_TEMPLATES: usize = 12;

/// The files with this ending, by their names without it.
fn texts(folder: &Path, ending: &str) -> BTreeMap<String, String> {
    let files = entries(folder).into_iter().filter(|path| path.extension().is_some_and(|end| end == ending));
    let text =
        |path: PathBuf| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap());
    files.map(text).collect()
}

/// The prompt of each conversation; null where it is refused, which is to be a 400.
fn renders(template: &Path, cases: &BTreeMap<String, String>) -> BTreeMap<String, Value> {
    let server = Setup::cpu().flag("--chat-template-file", template).start();
    let render = |(case, body): (&String, &String)| {
        // As the file has it: the order of a tool's properties is a part of the prompt.
        let reply = http::raw(server.address, "POST", "/apply-template", body.as_bytes()).unwrap();
        assert!(matches!(reply.status, 200 | 400), "{}: {case}: {reply:?}", template.display());
        (case.clone(), reply.json()["prompt"].clone())
    };
    let renders = cases.iter().map(render).collect();
    server.stop();
    renders
}

#[test]
fn every_family_renders_as_in_llama_server() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates");
    let cases = texts(&folder.join("cases"), "json");
    let goldens = texts(&folder.join("golden"), "json");
    let templates = texts(&folder, "jinja");
    assert!(templates.len() >= N_TEMPLATES, "{} templates", templates.len());
    assert!(goldens.keys().eq(templates.keys()), "run scripts/golden-templates");
    let mut differences = Vec::new();
    for name in templates.keys() {
        let golden: BTreeMap<String, Value> = serde_json::from_str(&goldens[name]).unwrap();
        assert!(golden.keys().eq(cases.keys()), "{name}: run scripts/golden-templates");
        for (case, render) in renders(&folder.join(format!("{name}.jinja")), &cases) {
            if render != golden[&case] {
                differences.push(format!("{name}: {case}:\n  here  {render}\n  there {}", golden[&case]));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
