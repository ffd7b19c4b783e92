use serde_json::json;

use super::*;
use crate::server::testing::{Play, Script};

fn options(body: Value) -> GenerateOptions {
    let params = Params::read(&Fields::root(body.as_object().unwrap()), &GenerateOptions::default()).unwrap();
    params.into_options(&Backend::Scripted(Script::new(Play::Items(Vec::new())))).unwrap()
}

fn changed(change: impl FnOnce(&mut GenerateOptions)) -> GenerateOptions {
    let mut options = GenerateOptions { two_pieces: true, ..GenerateOptions::default() };
    change(&mut options);
    options
}

fn sampled(change: impl FnOnce(&mut Sampling)) -> GenerateOptions {
    changed(|options| change(&mut options.sampling))
}

#[test]
fn nothing_and_null_and_unknown_fields_mean_the_defaults() {
    for body in [
        json!({}),
        json!({"temperature": null, "stop": null, "seed": null, "max_tokens": null, "logit_bias": null,
               "stream_options": null, "grammar": null, "stream": null}),
        json!({"unheard_of": 1, "user": "me", "metadata": {"a": 1}}),
        json!({"model": "any", "grammar": "", "stop": [], "logit_bias": {}}),
    ] {
        assert_eq!(options(body.clone()), changed(|_| ()), "{body}");
    }
}

#[test]
fn good_values() {
    for (body, expected) in [
        (json!({"max_tokens": 5}), changed(|o| o.max_tokens = Some(5))),
        (json!({"max_tokens": 0}), changed(|o| o.max_tokens = Some(0))),
        (json!({"max_tokens": 8.0}), changed(|o| o.max_tokens = Some(8))),
        (json!({"max_tokens": -1}), changed(|o| o.max_tokens = None)),
        (json!({"max_tokens": 1e30}), changed(|o| o.max_tokens = Some(u32::MAX))),
        (json!({"max_tokens": 5, "max_completion_tokens": 6}), changed(|o| o.max_tokens = Some(6))),
        (json!({"n_predict": 7, "max_completion_tokens": 6}), changed(|o| o.max_tokens = Some(7))),
        (json!({"n_predict": -1, "max_tokens": 6}), changed(|o| o.max_tokens = None)),
        (json!({"n_predict": null, "max_tokens": 6}), changed(|o| o.max_tokens = Some(6))),
        (json!({"stop": "a"}), changed(|o| o.stop = vec!["a".into()])),
        (json!({"stop": ["", "a", "b"]}), changed(|o| o.stop = vec!["a".into(), "b".into()])),
        (json!({"stop": ""}), changed(|_| ())),
        (json!({"stream": true}), changed(|o| o.two_pieces = false)),
        (json!({"n_probs": 3}), changed(|o| o.top_logprobs = Some(3))),
        (json!({"cache_prompt": true}), changed(|o| o.reuse_prefix = true)),
        (json!({"ignore_eos": true}), changed(|o| o.ignore_eos = true)),
        (json!({"temperature": 0}), sampled(|s| s.temperature = 0.0)),
        (json!({"temperature": -1}), sampled(|s| s.temperature = 0.0)),
        (json!({"top_p": 1.5, "min_p": -0.5, "typical_p": 2}), {
            sampled(|s| (s.top_p, s.min_p, s.typical_p) = (1.0, 0.0, 1.0))
        }),
        (json!({"top_k": 0}), sampled(|s| s.top_k = 0)),
        (json!({"top_k": -5}), sampled(|s| s.top_k = 0)),
        (json!({"repeat_penalty": 1.1, "repeat_last_n": 0}), {
            sampled(|s| (s.repeat_penalty, s.repeat_last_n) = (1.1, 0))
        }),
        (json!({"presence_penalty": -1, "frequency_penalty": 0.5}), {
            sampled(|s| (s.presence_penalty, s.frequency_penalty) = (-1.0, 0.5))
        }),
        (json!({"seed": 42}), sampled(|s| s.seed = Some(42))),
        (json!({"seed": -1}), sampled(|s| s.seed = None)),
        (json!({"seed": 4294967295_u32}), sampled(|s| s.seed = None)),
        (json!({"seed": (1_i64 << 40) + 3}), sampled(|s| s.seed = Some(3))),
        (json!({"grammar": "root ::= \"a\""}), {
            sampled(|s| s.grammar = Some(Grammar { gbnf: "root ::= \"a\"".into(), ..Grammar::default() }))
        }),
    ] {
        assert_eq!(options(body.clone()), expected, "{body}");
    }
}

#[test]
fn biases_are_for_ids_or_for_each_token_of_a_text() {
    let never = f32::NEG_INFINITY;
    for (body, expected) in [
        (json!({"65": 1.5}), vec![(65, 1.5)]),
        (json!({"AB": -2}), vec![(65, -2.0), (66, -2.0)]),
        (json!({"65": false}), vec![(65, never)]),
        (json!({"256": 1, "-1": 1}), vec![]),
        (json!([[65, 1], ["A", 2], ["65", false]]), vec![(65, 1.0), (65, 2.0), (54, never), (53, never)]),
        (json!([[65, 1e300]]), vec![(65, f32::MAX)]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(|(id, bias)| (Token(id), bias)).collect();
        assert_eq!(options(json!({"logit_bias": body})).sampling.logit_bias, expected, "{body}");
    }
}

#[test]
fn bad_values_are_named_by_path() {
    for (body, param, message) in [
        (json!({"stream": "yes"}), "stream", "expected a boolean, got a string"),
        (json!({"stream_options": true}), "stream_options", "expected an object, got a boolean"),
        (
            json!({"stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
            "expected a boolean, got an integer",
        ),
        (json!({"model": 1}), "model", "expected a string, got an integer"),
        (json!({"max_tokens": "5"}), "max_tokens", "expected an integer, got a string"),
        (json!({"max_tokens": 1.5}), "max_tokens", "expected an integer, got a fraction"),
        (json!({"max_tokens": -2}), "max_tokens", "must be at least -1"),
        (json!({"max_tokens": -2, "n_predict": 1}), "max_tokens", "must be at least -1"),
        (json!({"temperature": "hot"}), "temperature", "expected a number, got a string"),
        (json!({"temperature": 1e300}), "temperature", "is too large"),
        (json!({"top_p": []}), "top_p", "expected a number, got an array"),
        (json!({"top_k": 0.5}), "top_k", "expected an integer, got a fraction"),
        (json!({"repeat_penalty": 0}), "repeat_penalty", "must be greater than 0"),
        (json!({"repeat_last_n": -1}), "repeat_last_n", "must not be negative"),
        (json!({"seed": "x"}), "seed", "expected an integer, got a string"),
        (json!({"stop": 1}), "stop", "expected a string or an array of strings, got an integer"),
        (json!({"stop": ["a", null]}), "stop[1]", "expected a string, got null"),
        (json!({"grammar": {}}), "grammar", "expected a string, got an object"),
        (json!({"n": 0}), "n", "must be from 1 to 128"),
        (json!({"n": "2"}), "n", "expected an integer, got a string"),
        (json!({"n_probs": -1}), "n_probs", "must not be negative"),
        (json!({"ignore_eos": 1}), "ignore_eos", "expected a boolean, got an integer"),
        (json!({"logit_bias": 1}), "logit_bias", "expected an object or an array of pairs, got an integer"),
        (json!({"logit_bias": {"5": true}}), "logit_bias.5", "expected a number or false, got a boolean"),
        (json!({"logit_bias": [[5]]}), "logit_bias[0]", "expected a pair [token id or text, bias]"),
        (
            json!({"logit_bias": [[1, 1], [{}, 1]]}),
            "logit_bias[1][0]",
            "expected a token id or a string, got an object",
        ),
    ] {
        let error = Params::read(&Fields::root(body.as_object().unwrap()), &GenerateOptions::default()).unwrap_err();
        assert_eq!(error, ApiError::field(param, message), "{body}");
    }
}
