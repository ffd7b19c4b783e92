//! Fields that are known but not implemented. One that would change the answer is refused, never dropped in silence;
//! values that ask for nothing pass, since many clients send every field they have.

use serde_json::Value;

use crate::server::{error::ApiError, fields::Fields};

/// A field's name, what may be asked of it, and whether a value asks for no more than that.
type Field = (&'static str, &'static str, fn(&Value) -> bool);

const COMMON: &[Field] = &[
    ("samplers", "null", never),
    ("top_n_sigma", "0 or less", is_off),
    ("xtc_probability", "0", is_off),
    ("dynatemp_range", "0", is_off),
    ("mirostat", "0", is_zero),
    ("adaptive_target", "a number below 0", |value| value.as_f64().is_some_and(|number| number < 0.0)),
    ("min_keep", "0", is_off),
    ("dry_multiplier", "0", is_off),
    ("n_indent", "0", is_off),
    ("t_max_predict_ms", "0", is_off),
    ("lora", "[]", is_empty),
    ("post_sampling_probs", "false", is_false),
    ("speculative.n_max", "0", is_off),
    ("verbose", "false", is_false),
    ("reasoning_control", "false", is_false),
];

const CHAT: &[Field] = &[
    ("functions", "[]", is_empty),
    ("function_call", "\"auto\" and \"none\"", |value| matches!(value.as_str(), Some("auto" | "none"))),
    ("modalities", "[\"text\"]", |value| value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text"))),
    ("reasoning_budget_tokens", "-1", |value| value.as_i64() == Some(-1)),
    ("thinking_budget_tokens", "-1", |value| value.as_i64() == Some(-1)),
];

/// Refuses what chat completions do not do yet.
pub fn refuse_in_chat(fields: &Fields) -> Result<(), ApiError> {
    refuse(fields, COMMON)?;
    refuse(fields, CHAT)
}

/// Refuses what text completions do not do yet.
pub fn refuse_in_text(fields: &Fields) -> Result<(), ApiError> {
    refuse(fields, COMMON)
}

fn refuse(fields: &Fields, table: &[Field]) -> Result<(), ApiError> {
    for (name, allowed, asks_nothing) in table {
        if let Some(value) = fields.get(name)
            && !asks_nothing(value)
        {
            return Err(ApiError::field(fields.path(name), format_args!("not supported yet, except as {allowed}")));
        }
    }
    Ok(())
}

fn never(_: &Value) -> bool {
    false
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

/// Zero, or the negative numbers that llama.cpp takes for "off".
fn is_off(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number <= 0.0)
}

fn is_false(value: &Value) -> bool {
    value == false
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(refuse: fn(&Fields) -> Result<(), ApiError>, body: Value) -> Option<String> {
        let error = refuse(&Fields::root(body.as_object().unwrap())).err()?;
        serde_json::to_value(error.body()).unwrap()["error"]["param"].as_str().map(str::to_owned)
    }

    #[test]
    fn what_asks_for_nothing_passes() {
        let chat = json!({"functions": [], "function_call": "auto", "modalities": ["text"], "mirostat": 0,
            "top_n_sigma": -1.0, "lora": [], "samplers": null, "user": "me", "unheard_of": 1});
        assert_eq!(refused(refuse_in_chat, chat), None);
        assert_eq!(refused(refuse_in_text, json!({"mirostat": 0.0})), None);
    }

    #[test]
    fn what_would_change_the_answer_is_named() {
        for (name, value) in [
            ("functions", json!([{"name": "f"}])),
            ("function_call", json!({"name": "f"})),
            ("xtc_probability", json!(0.5)),
            ("samplers", json!(["top_k"])),
            ("modalities", json!(["audio"])),
        ] {
            let body = json!({name: value});
            assert_eq!(refused(refuse_in_chat, body.clone()).as_deref(), Some(name), "{body}");
        }
        assert_eq!(refused(refuse_in_text, json!({"mirostat": 2})).as_deref(), Some("mirostat"));
    }
}
