//! llama-server's command line, which launchers and people know by heart: each of its flags, and each variable of the
//! environment that stands for one, becomes a flag of `onebit serve`, or has no effect, or is refused with the reason. `table`
//! has them all; what it does not have is left to clap.

mod table;

use std::ffi::{OsStr, OsString};

use super::Failure;
use table::{Does, FLAGS, Flag, Takes};

/// What to parse instead, and what to say about it.
#[derive(Debug, Default)]
pub struct Translated {
    pub args: Vec<OsString>,
    /// Lines for the operator.
    pub notes: Vec<String>,
}

/// Translates a whole command line, the program's name first. Other commands than `serve` know llama.cpp's short spellings
/// only.
pub fn translate(
    args: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Translated, Failure> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if is_llama_server(&args) {
        args.insert(1, "serve".into());
    }
    if args.get(1).is_none_or(|command| command != "serve") {
        return Ok(Translated { args: super::args::normalize(args), notes: Vec::new() });
    }
    let mut line = Line { out: Translated { args: args.drain(..2).collect(), notes: Vec::new() }, seen: Vec::new() };
    let mut rest = args.into_iter();
    while let Some(arg) = rest.next() {
        if let Some(command) = other_command(&arg) {
            let program = line.out.args.swap_remove(0);
            return Ok(Translated { args: vec![program, command.into()], notes: Vec::new() });
        }
        line.argument(arg, &mut rest)?;
    }
    line.environment(variable)?;
    Ok(line.out)
}

/// Whether the program is called as llama-server is: by its name, or with a flag where a command would be.
fn is_llama_server(args: &[OsString]) -> bool {
    let by_name = args.first().and_then(|program| std::path::Path::new(program).file_name());
    let first = args.get(1).and_then(|arg| arg.to_str());
    let is_ours = matches!(first, Some("-h" | "--help" | "-V" | "--version") | None);
    by_name == Some(OsStr::new("llama-server")) || (!is_ours && first.is_some_and(|arg| arg.starts_with('-')))
}

/// Flags of llama-server that are commands here.
fn other_command(arg: &OsStr) -> Option<&'static str> {
    match arg.to_str()? {
        "--version" => Some("--version"),
        "--list-devices" => Some("devices"),
        _ => None,
    }
}

struct Line {
    out: Translated,
    /// Variables whose flags were given: those count more.
    seen: Vec<&'static str>,
}

impl Line {
    fn argument(&mut self, arg: OsString, rest: &mut std::vec::IntoIter<OsString>) -> Result<(), Failure> {
        let (name, joined) = match arg.to_str().and_then(|text| text.split_once('=')) {
            Some((name, value)) if name.starts_with("--") => (OsString::from(name), Some(OsString::from(value))),
            _ => (arg.clone(), None),
        };
        let Some((flag, spelling)) = find(&name) else {
            self.out.args.push(arg);
            return Ok(());
        };
        self.seen.push(flag.variable);
        let value = joined.or_else(|| match flag.takes {
            Takes::Nothing => None,
            Takes::One => rest.next(),
            Takes::Two => rest.next().and(rest.next()),
            Takes::Perhaps(words) => {
                let next = rest.as_slice().first().and_then(|next| next.to_str());
                if next.is_some_and(|next| words.contains(&next)) { rest.next() } else { None }
            }
        });
        self.apply(flag, spelling, value)
    }

    /// Variables stand for flags that were not given.
    fn environment(&mut self, variable: impl Fn(&str) -> Option<OsString>) -> Result<(), Failure> {
        for flag in FLAGS.iter().filter(|flag| !flag.variable.is_empty()) {
            if self.seen.contains(&flag.variable) {
                continue;
            }
            // Ours says the same and counts more.
            let is_said =
                flag.variable == "LLAMA_ARG_MODEL" && variable("ONEBIT_MODEL").is_some_and(|path| !path.is_empty());
            let Some(value) = variable(flag.variable).filter(|value| !value.is_empty() && !is_said) else {
                if let Some(negative) = flag.variable.strip_prefix("LLAMA_ARG_").filter(|_| flag.is_off)
                    && variable(&format!("LLAMA_ARG_NO_{negative}")).is_some()
                {
                    self.apply(flag, flag.variable, None)?;
                }
                continue;
            };
            if !matches!(flag.takes, Takes::Nothing) {
                self.apply(flag, flag.variable, Some(value))?;
            } else if truth(flag.variable, &value)? != flag.is_off {
                self.apply(flag, flag.variable, None)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, flag: &Flag, spelling: &str, value: Option<OsString>) -> Result<(), Failure> {
        match flag.does {
            Does::Becomes(ours) => {
                let mut arg = OsString::from(ours);
                // Joined, since a value such as -1 would look like a flag.
                if let Some(value) = value {
                    arg.push("=");
                    arg.push(value);
                }
                self.out.args.push(arg);
            }
            Does::Nothing => {}
            Does::NoEffect(reason) => self.out.notes.push(format!("{spelling} has no effect: {reason}")),
            Does::Only(values, reason) => {
                let value = value.unwrap_or_default().to_string_lossy().into_owned();
                if !values.iter().any(|allowed| is_same(allowed, &value)) {
                    return Err(refused(&format!("{spelling} {value}"), reason));
                }
            }
            Does::Refused(reason) => return Err(refused(spelling, reason)),
        }
        Ok(())
    }
}

fn find(name: &OsStr) -> Option<(&'static Flag, &'static str)> {
    FLAGS.iter().find_map(|flag| flag.names.iter().find(|known| name == **known).map(|known| (flag, *known)))
}

fn refused(flag: &str, reason: &str) -> Failure {
    Failure::usage(format!("{flag} is not supported: {reason}"))
}

/// Equal as numbers or as words.
fn is_same(a: &str, b: &str) -> bool {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a.eq_ignore_ascii_case(b),
    }
}

/// The words that llama-server takes for yes and no.
fn truth(variable: &str, value: &OsStr) -> Result<bool, Failure> {
    match value.to_str() {
        Some("on" | "enabled" | "true" | "1") => Ok(true),
        Some("off" | "disabled" | "false" | "0") => Ok(false),
        _ => Err(Failure::usage(format!("{variable}: expected on or off, got {}", value.to_string_lossy()))),
    }
}

#[cfg(test)]
mod tests;
