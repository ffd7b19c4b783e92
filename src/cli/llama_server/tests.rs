use clap::Parser;
use clap::error::ErrorKind;

use super::*;
use crate::cli::args::{Cli, Command, ServeArgs};

fn translated(args: &[&str], variables: &[(&str, &str)]) -> Result<Translated, String> {
    let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
    translate(args.iter().map(OsString::from), variable).map_err(|failure| failure.message)
}

fn serve(args: &[&str], variables: &[(&str, &str)]) -> Box<ServeArgs> {
    let args = translated(&[&["onebit", "serve", "-m", "x"], args].concat(), variables).unwrap().args;
    match Cli::try_parse_from(args).unwrap().command {
        Some(Command::Serve(serve)) => serve,
        other => panic!("{other:?}"),
    }
}

/// One line of `flags.txt`.
struct Known {
    names: Vec<&'static str>,
    hint: &'static str,
    variable: &'static str,
}

fn known() -> Vec<Known> {
    let lines = include_str!("flags.txt").lines().filter(|line| !line.starts_with('#'));
    let known: Vec<_> = lines
        .map(|line| {
            let parts: Vec<_> = line.split('|').map(str::trim).collect();
            // A hint may have this sign too.
            let (first, last) = (parts[0], parts[parts.len() - 1]);
            let hint = line[first.len()..].trim_start_matches([' ', '|']);
            Known { names: first.split(' ').collect(), hint: hint.strip_suffix(last).unwrap_or(hint), variable: last }
        })
        .collect();
    assert!(known.len() > 200, "the list has been read");
    known
}

/// Values such as one would give.
fn values(hint: &str) -> Vec<&'static str> {
    let hint = hint.trim_matches([' ', '|']);
    match hint {
        "" => vec![],
        "START END" => vec!["1", "2"],
        "TYPE" => vec!["f16"],
        "FORMAT" => vec!["deepseek"],
        "STRING" => vec!["{}"],
        "JINJA_TEMPLATE" => vec!["{{ messages }}"],
        _ if hint.starts_with("[on") => vec!["on"],
        _ if hint.starts_with("{none") => vec!["mean"],
        _ => vec!["1"],
    }
}

/// Whatever llama-server knows is understood, or refused by its name.
#[test]
fn no_flag_is_unexpected() {
    let mut n_refused = 0;
    for Known { names, hint, .. } in known() {
        for name in names {
            let args = [&["onebit", "serve", "-m", "x", name], &values(hint)[..]].concat();
            match translated(&args, &[]) {
                Err(message) => {
                    n_refused += 1;
                    assert!(message.starts_with(name), "{name}: {message}");
                }
                Ok(Translated { args, notes }) => {
                    assert!(notes.iter().all(|note| note.starts_with(&format!("{name} has no effect: "))), "{notes:?}");
                    match Cli::try_parse_from(&args) {
                        Ok(_) => {}
                        Err(err) => assert_eq!(err.kind(), ErrorKind::DisplayHelp, "{name} as {args:?}: {err}"),
                    }
                }
            }
        }
    }
    assert!((40..100).contains(&n_refused), "{n_refused}");
}

#[test]
fn no_variable_is_unexpected() {
    for Known { hint, variable, .. } in known() {
        if variable.is_empty() || ["HF_TOKEN", "MTMD_BACKEND_DEVICE"].contains(&variable) {
            continue;
        }
        assert!(FLAGS.iter().any(|flag| flag.variable == variable), "{variable} is in the table");
        let value = values(hint).first().copied().unwrap_or("on");
        match translated(&["onebit", "serve", "-m", "x"], &[(variable, value)]) {
            Err(message) => assert!(message.starts_with(variable), "{variable}: {message}"),
            Ok(Translated { args, .. }) => {
                Cli::try_parse_from(&args).unwrap_or_else(|err| panic!("{variable} as {args:?}: {err}"));
            }
        }
    }
}

#[test]
fn what_launchers_say_is_understood() {
    let args =
        "-c 4096 -ngl 99 -np 2 -fa -ctk q8_0 -ub 64 --jinja --metrics --no-webui --temp 0.5 -n -1 -s -1 -t -1 -a a,b";
    let args = serve(&args.split(' ').collect::<Vec<_>>(), &[]);
    assert_eq!((args.model.ctx_size, args.model.gpu_layers, args.parallel), (Some(4096), Some(99), 2));
    assert_eq!((args.model.ubatch_size, args.model.threads), (64, Some(0)));
    assert_eq!((args.endpoints.metrics, args.endpoints.no_ui), (true, true));
    assert_eq!((args.defaults.temp, args.defaults.predict, args.defaults.seed), (0.5, -1, -1));
    assert_eq!(args.model.flash_attn, crate::cli::args::FlashAttnArg::On);
    let args = serve(
        &["-ngl", "auto", "-np", "-1", "-fa", "0", "--n-gpu-layers", "7", "--api-key=a", "--api-key", "b,c"],
        &[],
    );
    assert_eq!((args.model.gpu_layers, args.parallel), (Some(7), 1), "the last one counts");
    assert_eq!(args.model.flash_attn, crate::cli::args::FlashAttnArg::Off);
    assert_eq!(args.access.api_key, ["a", "b", "c"]);
}

#[test]
fn variables_stand_for_flags_that_are_missing() {
    let variables = [
        ("LLAMA_ARG_CTX_SIZE", "512"),
        ("LLAMA_ARG_TEMPERATURE", "0.1"),
        ("LLAMA_ARG_ENDPOINT_SLOTS", "0"),
        ("LLAMA_ARG_ENDPOINT_METRICS", "1"),
        ("LLAMA_ARG_NO_CACHE_PROMPT", "x"),
        ("LLAMA_API_KEY", "k"),
        ("LLAMA_ARG_HOST", ""),
    ];
    let args = serve(&["--temp", "0.9"], &variables);
    assert_eq!((args.model.ctx_size, args.defaults.temp), (Some(512), 0.9));
    assert!(args.endpoints.no_slots && args.endpoints.metrics && args.defaults.no_cache_prompt);
    assert_eq!((args.access.api_key, args.host.as_str()), (vec!["k".to_owned()], "127.0.0.1"));
    assert!(!serve(&["--slots"], &variables).endpoints.no_slots);

    let of_model = |variables: &[(&str, &str)]| translated(&["onebit", "serve"], variables).unwrap().args.len();
    assert_eq!(of_model(&[("LLAMA_ARG_MODEL", "y")]), 3);
    assert_eq!(of_model(&[("LLAMA_ARG_MODEL", "y"), ("ONEBIT_MODEL", "z")]), 2, "ours counts more");
    let err = translated(&["onebit", "serve"], &[("LLAMA_ARG_JINJA", "perhaps")]).unwrap_err();
    assert!(err.starts_with("LLAMA_ARG_JINJA"), "{err}");
}

#[test]
fn other_ways_in() {
    for (args, expected) in [
        (&["onebit", "-m", "x", "--port", "1"][..], &["onebit", "serve", "--model=x", "--port=1"][..]),
        (&["/bin/llama-server", "--model=x"], &["/bin/llama-server", "serve", "--model=x"]),
        (&["llama-server", "--version"], &["llama-server", "--version"]),
        (&["llama-server", "--list-devices"], &["llama-server", "devices"]),
        (&["onebit", "serve", "--port", "1", "--version"], &["onebit", "--version"]),
        (&["onebit", "--version"], &["onebit", "--version"]),
        (&["onebit", "--help"], &["onebit", "--help"]),
        (&["onebit"], &["onebit"]),
        (&["onebit", "run", "-ngl", "1", "-n", "2"], &["onebit", "run", "--gpu-layers", "1", "-n", "2"]),
        (&["onebit", "serve", "--unheard-of", "-ngl"], &["onebit", "serve", "--unheard-of", "--gpu-layers"]),
    ] {
        assert_eq!(translated(args, &[]).unwrap().args, expected, "{args:?}");
    }
}

#[test]
fn off_is_accepted_where_on_is_not() {
    assert!(translated(&["onebit", "serve", "--mirostat", "0.0"], &[]).is_ok());
    let err = translated(&["onebit", "serve", "--mirostat", "2"], &[]).unwrap_err();
    assert!(err.starts_with("--mirostat 2 is not supported: "), "{err}");
    assert!(translated(&["onebit", "serve", "--no-jinja"], &[]).unwrap_err().starts_with("--no-jinja"));
}
