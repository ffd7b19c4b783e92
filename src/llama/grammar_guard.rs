//! What llama.cpp's grammar parser takes on without limit, and dies of: it recurses for each parenthesis and each link of a
//! chain of rules, and a repetition whose minimum is above its maximum fills the memory.

use super::Error;

const MAX_BYTES: usize = 1 << 20;
const MAX_RULES: usize = 2500;
const MAX_DEPTH: usize = 200;

/// Refuses grammars that the parser would not survive.
pub(super) fn check(gbnf: &str) -> Result<(), Error> {
    let refuse = |what: String| Err(Error::Invalid(what));
    if gbnf.len() > MAX_BYTES {
        return refuse(format!("the grammar has {} bytes; at most {MAX_BYTES} are taken", gbnf.len()));
    }
    let n_rules = gbnf.matches("::=").count();
    if n_rules > MAX_RULES {
        return refuse(format!("the grammar has {n_rules} rules; at most {MAX_RULES} are taken"));
    }
    let mut depth = 0usize;
    let mut rest = gbnf.char_indices();
    while let Some((at, c)) = rest.next() {
        match c {
            '"' => skip(&mut rest, '"'),
            '[' => skip(&mut rest, ']'),
            '#' => _ = rest.find(|(_, c)| *c == '\n'),
            '(' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return refuse(format!("the grammar is nested deeper than {MAX_DEPTH} parentheses"));
                }
            }
            ')' => depth = depth.saturating_sub(1),
            '{' => repetition(&gbnf[at + 1..])?,
            _ => {}
        }
    }
    Ok(())
}

/// Past a literal or a class; a backslash takes the next character along.
fn skip(rest: &mut std::str::CharIndices<'_>, end: char) {
    while let Some((_, c)) = rest.next() {
        if c == '\\' {
            rest.next();
        } else if c == end {
            return;
        }
    }
}

/// `min,max}` must be in order.
fn repetition(text: &str) -> Result<(), Error> {
    let Some((inside, _)) = text.split_once('}') else { return Ok(()) };
    let Some((min, max)) = inside.split_once(',') else { return Ok(()) };
    match (min.trim().parse::<u64>(), max.trim().parse::<u64>()) {
        (Ok(min), Ok(max)) if min > max => {
            Err(Error::Invalid(format!("the repetition {{{inside}}} asks for at least {min} and at most {max}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_parser_survives_passes() {
        for good in [
            "root ::= \"a\"{2,5} [({] \"((((\" # ((((\n".to_owned(),
            format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100)),
            "root ::= [\\]({5,2}] \"\\\"{5,2}\" a{3} b{3,}".to_owned(),
        ] {
            assert!(check(&good).is_ok(), "{good}");
        }
    }

    #[test]
    fn what_it_does_not_is_refused() {
        let chain: String = (0..5000).map(|i| format!("a{i} ::= a{}\n", i + 1)).collect();
        for (bad, expected) in [
            (format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000)), "nested deeper"),
            (format!("root ::= a0\n{chain}a5000 ::= \"a\""), "rules; at most"),
            ("root ::= \"a\"{5,2}".to_owned(), "{5,2}"),
            ("x".repeat(2 << 20), "bytes; at most"),
        ] {
            let error = check(&bad).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
