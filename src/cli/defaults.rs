//! What a request gets that does not say otherwise.

use clap::Args;
use serde_json::{Map, Value, json};

use crate::engine::{GenerateOptions, Sampling};
use crate::server::{ChatDefaults, ServerConfig};

use super::Failure;

/// Values are the ones of llama-server, whose flags these are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Defaults of requests")]
pub struct DefaultsArgs {
    /// Most tokens to generate; -1 is until the model ends
    #[arg(long, value_name = "N", default_value_t = -1)]
    pub predict: i64,

    /// Temperature; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub temp: f32,

    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: i64,

    /// Keep the most likely tokens up to this total probability
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f32,

    /// Keep tokens at least this likely relative to the best
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub min_p: f32,

    /// Locally typical sampling; 1 is off
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub typical_p: f32,

    /// Penalty of tokens seen lately; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repeat_penalty: f32,

    /// How many tokens back penalties look; 0 is off
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub repeat_last_n: i64,

    /// Penalty of tokens seen at all
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub presence_penalty: f32,

    /// Penalty for each time a token was seen
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub frequency_penalty: f32,

    /// Seed of the draw; -1 draws one
    #[arg(long, value_name = "N", default_value_t = -1)]
    pub seed: i64,

    /// Never end an answer by itself
    #[arg(long)]
    pub ignore_eos: bool,

    /// Text that ends an answer (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,

    /// Evaluate each prompt from its beginning
    #[arg(long)]
    pub no_cache_prompt: bool,

    /// Variables of the chat template, a JSON object
    #[arg(long, value_name = "JSON")]
    pub chat_template_kwargs: Option<String>,

    /// Where a thinking model's thoughts go: none (into the content), auto, deepseek, deepseek-legacy
    #[arg(long, value_name = "FORMAT", value_parser = ["none", "auto", "deepseek", "deepseek-legacy"])]
    pub reasoning_format: Option<String>,

    /// Whether a thinking model thinks: on, off, or auto, which leaves it to the template
    #[arg(long, value_name = "WHEN", default_value = "auto", default_missing_value = "on", num_args = 0..=1)]
    pub reasoning: String,

    /// How hard it thinks, in the template's words; `default` leaves it to the template
    #[arg(long, value_name = "LEVEL")]
    pub reasoning_effort: Option<String>,

    /// 0 switches thinking off, -1 does not limit it
    #[arg(long, value_name = "N", default_value_t = -1)]
    pub reasoning_budget: i64,
}

/// Puts the flags into the server's settings.
pub fn apply(args: &DefaultsArgs, config: &mut ServerConfig) -> Result<(), Failure> {
    config.defaults = GenerateOptions {
        max_tokens: u32::try_from(args.predict).ok(),
        stop: args.stop.iter().filter(|text| !text.is_empty()).cloned().collect(),
        sampling: sampling(args)?,
        ignore_eos: args.ignore_eos,
        reuse_prefix: !args.no_cache_prompt,
        ..GenerateOptions::default()
    };
    config.chat = chat(args)?;
    Ok(())
}

fn sampling(args: &DefaultsArgs) -> Result<Sampling, Failure> {
    let number = |flag: &str, value: f32, fits: fn(f32) -> bool, expected: &str| match value.is_finite() && fits(value)
    {
        true => Ok(value),
        false => Err(Failure::usage(format!("{flag} {value}: expected {expected}"))),
    };
    let share = |flag, value: f32| number(flag, value, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1");
    let any = |flag, value| number(flag, value, |_| true, "a number");
    Ok(Sampling {
        temperature: number("--temp", args.temp, |value| value >= 0.0, "a number that is not negative")?,
        top_k: count(args.top_k),
        top_p: share("--top-p", args.top_p)?,
        min_p: share("--min-p", args.min_p)?,
        typical_p: share("--typical-p", args.typical_p)?,
        repeat_penalty: number("--repeat-penalty", args.repeat_penalty, |value| value > 0.0, "a number above 0")?,
        repeat_last_n: match args.repeat_last_n {
            -1 => u32::MAX,
            n => count(n),
        },
        presence_penalty: any("--presence-penalty", args.presence_penalty)?,
        frequency_penalty: any("--frequency-penalty", args.frequency_penalty)?,
        // llama.cpp's seeds have 32 bits, and the highest means "draw one".
        seed: u32::try_from(args.seed).ok().filter(|seed| *seed != u32::MAX),
        ..Sampling::default()
    })
}

/// Numbers below 0 are llama.cpp's "off".
fn count(n: i64) -> u32 {
    u32::try_from(n.max(0)).unwrap_or(u32::MAX)
}

fn chat(args: &DefaultsArgs) -> Result<ChatDefaults, Failure> {
    let mut variables = variables(args.chat_template_kwargs.as_deref().unwrap_or_default())?;
    if let Some(effort) = args.reasoning_effort.as_deref().filter(|effort| *effort != "default") {
        variables.entry("reasoning_effort").or_insert(json!(effort));
    }
    let wanted = match args.reasoning.as_str() {
        "on" | "1" | "true" | "enabled" => Some(true),
        "off" | "0" | "false" | "disabled" => Some(false),
        "auto" => None,
        other => return Err(Failure::usage(format!("--reasoning {other}: expected on, off or auto"))),
    };
    let limited = match args.reasoning_budget {
        ..0 => None,
        0 => Some(false),
        n => {
            return Err(Failure::usage(format!(
                "--reasoning-budget {n} is not supported: give 0 for no thoughts, or -1"
            )));
        }
    };
    let named = match variables.remove("enable_thinking") {
        None => None,
        Some(Value::Bool(enable)) => Some(enable),
        Some(_) => return Err(Failure::usage("--chat-template-kwargs: `enable_thinking` is true or false")),
    };
    Ok(ChatDefaults {
        template_kwargs: variables,
        enable_thinking: limited.or(wanted).or(named),
        reasoning_format: args.reasoning_format.clone(),
    })
}

fn variables(text: &str) -> Result<Map<String, Value>, Failure> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text)
        .map_err(|err| Failure::usage(format!("--chat-template-kwargs: expected a JSON object: {err}")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(args_override_self = true)]
    struct Line {
        #[command(flatten)]
        defaults: DefaultsArgs,
    }

    fn config(flags: &[&str]) -> Result<ServerConfig, String> {
        let line = Line::try_parse_from([&["onebit"], flags].concat()).unwrap();
        let mut config = ServerConfig::default();
        apply(&line.defaults, &mut config).map_err(|failure| failure.message)?;
        Ok(config)
    }

    #[test]
    fn no_flags_are_the_defaults_of_the_library() {
        let config = config(&[]).unwrap();
        assert_eq!(config.defaults, ServerConfig::default().defaults);
        assert_eq!(config.chat, ChatDefaults::default());
    }

    #[test]
    fn flags_reach_the_defaults() {
        let flags = "--predict=32 --temp=0 --top-k=-1 --seed=7 --repeat-last-n=-1 --stop=x --stop=y --no-cache-prompt \
                     --reasoning-format=none --reasoning=off --reasoning-effort=low";
        let mut flags: Vec<_> = flags.split_whitespace().collect();
        flags.push("--chat-template-kwargs={\"a\": [1], \"enable_thinking\": true}");
        let ServerConfig { defaults, chat, .. } = config(&flags).unwrap();
        assert_eq!((defaults.max_tokens, defaults.reuse_prefix), (Some(32), false));
        assert_eq!(defaults.stop, ["x", "y"]);
        let sampling = defaults.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.0, 0, Some(7)));
        assert_eq!(sampling.repeat_last_n, u32::MAX);
        assert_eq!(Value::Object(chat.template_kwargs), json!({"a": [1], "reasoning_effort": "low"}));
        assert_eq!((chat.enable_thinking, chat.reasoning_format.as_deref()), (Some(false), Some("none")));
        assert_eq!(config(&["--reasoning-budget=0"]).unwrap().chat.enable_thinking, Some(false));
        assert_eq!(config(&["--seed=-1", "--predict=-2"]).unwrap().defaults, ServerConfig::default().defaults);
    }

    #[test]
    fn bad_values_are_named() {
        for flag in [
            "--temp=-1",
            "--temp=nan",
            "--top-p=1.5",
            "--repeat-penalty=0",
            "--reasoning=perhaps",
            "--reasoning-budget=9",
            "--chat-template-kwargs=[1]",
            "--chat-template-kwargs={\"enable_thinking\": \"yes\"}",
        ] {
            let message = config(&[flag]).expect_err("refused");
            let name = flag.split('=').next().unwrap();
            assert!(message.starts_with(name), "{message}");
        }
    }
}
