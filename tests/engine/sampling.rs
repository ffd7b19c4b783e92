//! Options: what is chosen, where it stops, what is refused.

use onebit::engine::{EngineError, FinishReason, GenerateOptions, Grammar, Sampling};
use onebit::llama::Token;

use crate::common::model::{byte_token, tokens};
use crate::{engine, engine_with_context, generate, only_visible, refused, visible};

const PROMPT: &str = "Tell me something.";

#[test]
fn greedy_answers_repeat_themselves() {
    let engine = engine();
    let first = generate(&engine, PROMPT, &visible(48));
    assert_eq!((first.text().len(), first.report.n_generated), (48, 48));
    assert_eq!(first.report.finish, FinishReason::MaxTokens);
    assert_eq!(generate(&engine, PROMPT, &visible(48)).tokens(), first.tokens());
    assert_ne!(generate(&engine, "Tell me something!", &visible(48)).tokens(), first.tokens());
}

#[test]
fn a_seed_makes_the_same_draw() {
    let engine = engine();
    let drawn = |seed: Option<u32>| {
        let sampling = Sampling {
            temperature: 1.0,
            seed,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            logit_bias: only_visible(),
            ..Sampling::default()
        };
        generate(&engine, PROMPT, &GenerateOptions { sampling, ..visible(48) })
    };
    let first = drawn(Some(7));
    assert_eq!((drawn(Some(7)).text(), first.report.seed), (first.text(), 7));
    assert_ne!(drawn(Some(8)).text(), first.text());
    // Without one, a fresh one is drawn, and told.
    let random = drawn(None);
    assert_eq!(drawn(Some(random.report.seed)).text(), random.text());
    assert_ne!(drawn(None).report.seed, random.report.seed);
}

#[test]
fn stop_strings_across_tokens() {
    let engine = engine();
    let whole = generate(&engine, PROMPT, &visible(64)).text();
    for (start, len) in [(0, 1), (0, 4), (5, 1), (9, 3), (20, 8), (61, 3)] {
        let stop = &whole[start..start + len];
        let options = GenerateOptions { stop: vec!["\u{1}never".to_owned(), stop.to_owned()], ..visible(64) };
        let outcome = generate(&engine, PROMPT, &options);
        assert_eq!(outcome.text(), whole[..whole.find(stop).unwrap()], "stop at {stop:?}");
        assert_eq!(outcome.report.finish, FinishReason::StopString(stop.to_owned()));
    }
    // The beginning of a stop string at the very end is text.
    let stop = format!("{}\u{1}", &whole[60..]);
    let outcome = generate(&engine, PROMPT, &GenerateOptions { stop: vec![stop], ..visible(64) });
    assert_eq!((outcome.text(), outcome.report.finish), (whole, FinishReason::MaxTokens));
}

#[test]
fn lengths() {
    let engine = engine_with_context(256);
    let nothing = generate(&engine, PROMPT, &visible(0));
    assert_eq!((nothing.pieces.len(), nothing.report.n_generated), (0, 0));
    assert_eq!(nothing.report.finish, FinishReason::MaxTokens);
    assert_eq!(nothing.prompt.n_prompt, tokens(PROMPT).len());
    let one = generate(&engine, PROMPT, &visible(1));
    assert_eq!(one.text(), generate(&engine, PROMPT, &visible(9)).text()[..1]);

    // Prompt and answer together fill the context.
    let prompt = "x".repeat(249);
    let all = generate(&engine, &prompt, &GenerateOptions { max_tokens: None, ..visible(0) });
    assert_eq!((all.report.finish.clone(), all.report.n_generated), (FinishReason::ContextFull, 256 - 250));
}

#[test]
fn end_tokens_end() {
    let engine = engine();
    let end = Token(2);
    let sampling = Sampling { logit_bias: vec![(end, 1e6)], ..Sampling::greedy() };
    let options = GenerateOptions { sampling, ..GenerateOptions::greedy(8) };
    let outcome = generate(&engine, PROMPT, &options);
    assert_eq!((outcome.text().as_str(), outcome.report.n_generated), ("", 1));
    assert_eq!(outcome.report.finish, FinishReason::EndOfText);
    let outcome = generate(&engine, PROMPT, &GenerateOptions { ignore_eos: true, ..options });
    assert_eq!((outcome.report.finish, outcome.report.n_generated), (FinishReason::MaxTokens, 8));
}

#[test]
fn a_bias_forces_and_forbids() {
    let engine = engine();
    let biased = |logit_bias| {
        let sampling = Sampling { logit_bias, ..Sampling::greedy() };
        generate(&engine, PROMPT, &GenerateOptions { sampling, ..GenerateOptions::greedy(5) }).text()
    };
    assert_eq!(biased(vec![(byte_token(b'Z'), 1000.0)]), "ZZZZZ");
    assert_eq!(biased(vec![(byte_token(b'Z'), 1000.0), (byte_token(b'Y'), 2000.0)]), "YYYYY");
    let first = generate(&engine, PROMPT, &visible(1)).tokens()[0];
    let mut forbidden = only_visible();
    forbidden.push((first, f32::NEG_INFINITY));
    let text = biased(forbidden);
    assert!(!text.contains(char::from(u8::try_from(first.0 - 3).unwrap())), "{text}");
}

fn with_grammar(gbnf: &str) -> GenerateOptions {
    let grammar = Some(Grammar { gbnf: gbnf.to_owned(), ..Grammar::default() });
    GenerateOptions { sampling: Sampling { grammar, ..Sampling::greedy() }, ..GenerateOptions::greedy(64) }
}

#[test]
fn a_grammar_is_obeyed() {
    let engine = engine();
    for prompt in [PROMPT, "Are you sure?", "No? ", "\u{e9}"] {
        let outcome = generate(&engine, prompt, &with_grammar(r#"root ::= "yes" | "no""#));
        assert!(["yes", "no"].contains(&&*outcome.text()), "{}", outcome.text());
        assert_eq!(outcome.report.finish, FinishReason::EndOfText);
    }
    // Characters of several bytes, which are several tokens here.
    let outcome = generate(&engine, PROMPT, &with_grammar("root ::= [\u{e9}\u{4e2d}\u{1f600}]{3}"));
    assert_eq!(outcome.text().chars().filter(|c| "\u{e9}\u{4e2d}\u{1f600}".contains(*c)).count(), 3);
}

#[test]
fn options_that_are_refused() {
    let engine = engine();
    let check = |options: &GenerateOptions, expected: &str| {
        let error = refused(engine.generate(PROMPT, options), &format!("{:?}", options.sampling));
        let EngineError::InvalidOption { option, .. } = &error else { panic!("{error}") };
        assert_eq!(*option, expected, "{error}");
        assert!(engine.check(&[Token(1)], options).is_err(), "`check` agrees");
    };
    for gbnf in ["root ::= nothing", "root ::= \"a", "start ::= \"a\"", "root ::= root", "\0"] {
        check(&with_grammar(gbnf), "grammar");
    }
    let with = |change: &dyn Fn(&mut Sampling)| {
        let mut options = visible(1);
        change(&mut options.sampling);
        options
    };
    check(&with(&|sampling| sampling.temperature = -1.0), "temperature");
    check(&with(&|sampling| sampling.temperature = f32::NAN), "temperature");
    check(&with(&|sampling| sampling.top_p = 1.5), "top_p");
    check(&with(&|sampling| sampling.min_p = -0.1), "min_p");
    check(&with(&|sampling| sampling.typical_p = -0.1), "typical_p");
    check(&with(&|sampling| sampling.repeat_penalty = 0.0), "repeat_penalty");
    check(&with(&|sampling| sampling.presence_penalty = f32::INFINITY), "presence_penalty");
    assert_eq!(generate(&engine, PROMPT, &visible(4)).report.n_generated, 4);
}

#[test]
fn prompts_that_are_refused() {
    let engine = engine_with_context(256);
    let check = |prompt: Vec<Token>, expected: &str| {
        let error = refused(engine.generate(prompt.clone(), &visible(1)), expected);
        assert_eq!(error.to_string(), expected);
        assert_eq!(engine.prefill_to_file(prompt.clone(), "/dev/null").unwrap_err().to_string(), expected);
        let restored = refused(engine.restore_and_generate("/dev/null", prompt, &visible(1)), expected);
        assert_eq!(restored.to_string(), expected);
    };
    check(Vec::new(), "the prompt is empty");
    check(vec![Token(1), Token(259)], "token id 259 is outside the vocabulary of 259 tokens");
    check(vec![Token(1), Token(-1)], "token id -1 is outside the vocabulary of 259 tokens");
    let too_long =
        |n: usize| format!("the prompt has {n} tokens, but the context holds 256 and needs room for at least one more");
    check(vec![Token(5); 256], &too_long(256));
    check(vec![Token(5); 9000], &too_long(9000));
    let error = refused(engine.generate("y".repeat(300), &visible(1)), "300 bytes");
    assert!(matches!(error, EngineError::PromptTooLong { n_prompt: 301, n_ctx: 256 }), "{error}");
    assert_eq!(generate(&engine, &"y".repeat(254), &visible(1)).report.n_generated, 1);
}
