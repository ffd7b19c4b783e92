//! The commands.

mod access;
mod args;
mod bench;
mod config;
mod defaults;
mod devices;
mod endpoints;
mod hrx;
mod llama_server;
mod loading;
mod prefill;
mod provider;
mod run;
mod serve;
mod state;
mod store;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

pub use prefill::main as prefill_main;

/// Why a command ends with another status than 0.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Exit status: 1 failed, 2 wrong or refused flags, 3 the model cannot be loaded, 5 `--print-backend` with hybrid.
    pub code: u8,
    /// One line; empty when everything was said already.
    pub message: String,
}

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn usage(message: impl Into<String>) -> Self {
        Self::new(2, message)
    }
}

impl From<crate::engine::LoadError> for Failure {
    fn from(error: crate::engine::LoadError) -> Self {
        let code = if matches!(error, crate::engine::LoadError::Device(_)) { 2 } else { 3 };
        Self::new(code, error.to_string())
    }
}

/// Runs `onebit` with these arguments (the first is the program's name).
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let translated = match llama_server::translate(arguments, |name| std::env::var_os(name)) {
        Ok(translated) => translated,
        Err(failure) => return exit_code("onebit serve", Err(failure)),
    };
    let cli = match Cli::try_parse_from(translated.args) {
        Ok(cli) => cli,
        Err(err) => {
            // Help goes to stdout with 0, mistakes to stderr with 2.
            let _ = err.print();
            return ExitCode::from(u8::try_from(err.exit_code()).unwrap_or(2));
        }
    };
    translated.notes.iter().for_each(|note| eprintln!("onebit serve: {note}"));
    start_log();
    if cli.version {
        return print_version();
    }
    let (name, result) = match cli.command {
        Some(Command::Serve(args)) => ("serve", serve::main(&args)),
        Some(Command::Run(args)) => ("run", run::main(&args)),
        Some(Command::Devices(args)) => ("devices", devices::main(&args)),
        Some(Command::State(command)) => (command.name(), state::main(&command)),
        Some(Command::Provider(command)) => ("provider check", provider::main(&command)),
        Some(Command::Store(command)) => (command.name(), store::main(&command)),
        Some(Command::Bench(args)) => ("bench", bench::main(&args)),
        Some(Command::Licenses) => ("licenses", print(&licenses())),
        None => return ExitCode::from(2),
    };
    exit_code(&format!("onebit {name}"), result)
}

fn exit_code(name: &str, result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else { return ExitCode::SUCCESS };
    if !failure.message.is_empty() {
        eprintln!("{name}: {}", failure.message);
    }
    ExitCode::from(failure.code)
}

/// NOTICE names what ships no license file of its own; the texts that were found at build time follow.
fn licenses() -> String {
    format!("{}\n{}", include_str!("../../NOTICE"), crate::llama::licenses())
}

/// `version: <number>` comes first: launchers that know llama-server read it.
fn print_version() -> ExitCode {
    exit_code("onebit", print(&version()))
}

fn version() -> String {
    let revision = env!("ONEBIT_REVISION");
    let revision = if revision.is_empty() { String::new() } else { format!(", revision {revision}") };
    format!(
        "version: {} (onebit {}{revision})\nllama.cpp: {}\nsequence-state file: version {}\n",
        crate::llama::build_number(),
        env!("CARGO_PKG_VERSION"),
        crate::llama::source(),
        crate::llama::state_version(),
    )
}

/// Refuses to replace what is there and is no plain file: a device, a pipe, a folder, a link.
fn require_replaceable(path: &std::path::Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(metadata) if !metadata.file_type().is_file() => {
            let path = path.display();
            Err(Failure::usage(format!("{path} is no regular file, and is not replaced; name another file")))
        }
        _ => Ok(()),
    }
}

/// Writes to stdout. A closed pipe (`onebit licenses | head`) is a normal end.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(err) if err.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(1, format!("cannot write to standard output: {err}")))
        }
        _ => Ok(()),
    }
}

/// The log goes to stderr; `ONEBIT_LOG` says what, as `level` or `target=level,...` (default: warnings, and of llama.cpp
/// errors).
fn start_log() {
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    let usual = || Targets::new().with_default(tracing::Level::WARN).with_target("llama.cpp", tracing::Level::ERROR);
    let wanted = std::env::var("ONEBIT_LOG").ok().and_then(|text| text.parse().ok());
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // A second start (in a process that has a log already) changes nothing.
    let _ = tracing_subscriber::registry().with(lines).with(wanted.unwrap_or_else(usual)).try_init();
}

#[cfg(test)]
mod tests {
    #[test]
    fn launchers_find_a_number_on_the_first_line_of_the_version() {
        let version = super::version();
        let number = version.strip_prefix("version: ").and_then(|rest| rest.split([' ', '\n']).next()).unwrap();
        assert!(number.parse::<u32>().is_ok_and(|number| number > 0), "{version}");
    }
}
