//! What llama.cpp's grammars take on without limit, and the process dies of or waits for: the parser recurses for each
//! parenthesis and each link of a chain of rules, a repetition whose minimum is above its maximum fills the memory, and each
//! element that may be empty doubles the ways to go on.

use std::collections::HashMap;

use super::{Error, grammar_ways};

const MAX_BYTES: usize = 1 << 20;
const MAX_RULES: usize = 2500;
const MAX_DEPTH: usize = 200;

/// Elements in a row that may all be empty, written out or by repetition.
const MAX_EMPTY: u64 = 64;

/// Refuses grammars that llama.cpp would not survive, or not finish in a reader's time.
pub(super) fn check(gbnf: &str) -> Result<(), Error> {
    if gbnf.len() > MAX_BYTES {
        return refuse(format!("the grammar has {} bytes; at most {MAX_BYTES} are taken", gbnf.len()));
    }
    let tokens = tokens(gbnf);
    let n_rules = tokens.iter().filter(|token| **token == Token::Defines).count();
    if n_rules > MAX_RULES {
        return refuse(format!("the grammar has {n_rules} rules; at most {MAX_RULES} are taken"));
    }
    // Whether a rule may be empty depends on others. Each round can only find more that may; two give chains of one link in
    // either direction, and grammars with longer ones are for llama.cpp to judge.
    let mut may_be_empty = HashMap::new();
    for _ in 0..3 {
        let mut walk = Walk { tokens: &tokens, at: 0, may_be_empty: may_be_empty.clone() };
        may_be_empty = walk.rules()?;
    }
    grammar_ways::problem(&tokens).map_or(Ok(()), refuse)
}

fn refuse<T>(why: String) -> Result<T, Error> {
    Err(Error::Invalid(why))
}

/// A word of a grammar's text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Name(&'a str),
    Defines,
    /// A literal, class, `.` or token: matches something, but for an empty literal.
    Terminal {
        is_empty: bool,
    },
    Open,
    Close,
    Or,
    /// `?`, `*`, `+` or `{min,max}`.
    Repeat {
        min: u64,
        max: u64,
    },
}

/// What matters of a grammar's text. What is no grammar gives tokens of no sense, which the parser refuses.
fn tokens(gbnf: &str) -> Vec<Token<'_>> {
    let bytes = gbnf.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at += 1;
        match bytes[start] {
            b'"' => {
                at = past(bytes, at, b'"');
                tokens.push(Token::Terminal { is_empty: at == start + 2 });
            }
            b'[' => {
                at = past(bytes, at, b']');
                tokens.push(Token::Terminal { is_empty: false });
            }
            b'<' => {
                at = past(bytes, at, b'>');
                tokens.push(Token::Terminal { is_empty: false });
            }
            b'.' => tokens.push(Token::Terminal { is_empty: false }),
            b'#' => at = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |n| at + n),
            b'(' => tokens.push(Token::Open),
            b')' => tokens.push(Token::Close),
            b'|' => tokens.push(Token::Or),
            b'?' => tokens.push(Token::Repeat { min: 0, max: 1 }),
            b'*' => tokens.push(Token::Repeat { min: 0, max: u64::MAX }),
            b'+' => tokens.push(Token::Repeat { min: 1, max: u64::MAX }),
            b'{' => {
                at = past(bytes, at, b'}');
                tokens.extend(repetition(gbnf.get(start + 1..at.saturating_sub(1)).unwrap_or_default()));
            }
            b':' if gbnf[start..].starts_with("::=") => {
                at += 2;
                tokens.push(Token::Defines);
            }
            byte if is_word(byte) => {
                at += bytes[at..].iter().take_while(|byte| is_word(**byte)).count();
                tokens.push(Token::Name(&gbnf[start..at]));
            }
            _ => {}
        }
    }
    tokens
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// Behind the end of a literal or a class; a backslash takes the next byte along.
fn past(bytes: &[u8], mut at: usize, end: u8) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == end => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `min`, `min,` or `min,max`.
fn repetition(inside: &str) -> Option<Token<'static>> {
    let (min, max) = match inside.split_once(',') {
        None => (inside.trim().parse().ok()?, inside.trim().parse().ok()?),
        Some((min, max)) if max.trim().is_empty() => (min.trim().parse().ok()?, u64::MAX),
        Some((min, max)) => (min.trim().parse().ok()?, max.trim().parse().ok()?),
    };
    Some(Token::Repeat { min, max })
}

struct Walk<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    may_be_empty: HashMap<&'a str, bool>,
}

impl<'a> Walk<'a> {
    /// Every rule, and whether it may be empty.
    fn rules(&mut self) -> Result<HashMap<&'a str, bool>, Error> {
        let mut found = HashMap::new();
        while self.at < self.tokens.len() {
            if let Some(name) = self.rule_begins() {
                self.at += 2;
                let is_empty = self.alternatives(0)?;
                *found.entry(name).or_insert(false) |= is_empty;
            } else {
                self.at += 1;
            }
        }
        Ok(found)
    }

    fn rule_begins(&self) -> Option<&'a str> {
        match self.tokens.get(self.at..self.at + 2) {
            Some([Token::Name(name), Token::Defines]) => Some(name),
            _ => None,
        }
    }

    /// Up to the end of a group or rule; whether one of the alternatives may be empty.
    fn alternatives(&mut self, depth: usize) -> Result<bool, Error> {
        if depth > MAX_DEPTH {
            return refuse(format!("the grammar is nested deeper than {MAX_DEPTH} parentheses"));
        }
        let mut any = false;
        loop {
            any |= self.sequence(depth)?;
            if self.tokens.get(self.at) != Some(&Token::Or) {
                return Ok(any);
            }
            self.at += 1;
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<bool, Error> {
        let mut all = true;
        let mut n_empty = 0u64;
        while let Some(mut is_empty) = self.element(depth)? {
            let mut n_times = 1;
            while let Some(Token::Repeat { min, max }) = self.tokens.get(self.at) {
                self.at += 1;
                if min > max {
                    return refuse(format!("the repetition {{{min},{max}}} asks for more than it allows"));
                }
                // Of an endless repetition the part beyond the minimum is one loop.
                n_times = if is_empty { (*if *max == u64::MAX { min } else { max }).max(1) } else { 1 };
                is_empty |= *min == 0;
            }
            all &= is_empty;
            n_empty = if is_empty { n_empty.saturating_add(n_times) } else { 0 };
            if n_empty > MAX_EMPTY {
                return refuse(format!("more than {MAX_EMPTY} elements in a row of the grammar may be empty"));
            }
        }
        Ok(all)
    }

    /// Whether the next element may be empty; `None` at the end of the sequence.
    fn element(&mut self, depth: usize) -> Result<Option<bool>, Error> {
        if self.rule_begins().is_some() {
            return Ok(None);
        }
        let Some(token) = self.tokens.get(self.at) else { return Ok(None) };
        if matches!(token, Token::Or | Token::Close) {
            return Ok(None);
        }
        self.at += 1;
        match token {
            Token::Name(name) => Ok(Some(self.may_be_empty.get(name).copied().unwrap_or(false))),
            Token::Terminal { is_empty } => Ok(Some(*is_empty)),
            Token::Open => {
                let is_empty = self.alternatives(depth + 1)?;
                if self.tokens.get(self.at) == Some(&Token::Close) {
                    self.at += 1;
                }
                Ok(Some(is_empty))
            }
            // Out of place: for the parser to refuse.
            _ => Ok(Some(false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_llama_cpp_manages_passes() {
        for good in [
            "root ::= \"a\"{2,5} [({] \"((((\" # ((((\n".to_owned(),
            format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100)),
            "root ::= [\\]({5,2}] \"\\\"{5,2}\" a{3} b{3,}".to_owned(),
            "root ::= char{0,2000}\nchar ::= [^\"\\\\]".to_owned(),
            "root ::= (\"a\"? \"b\"){1000}".to_owned(),
            "root ::= \"a\"? \"b\"* (\"c\" | \"\")".to_owned(),
            "root ::= call | calls\ncalls ::= (call? space)+\ncall ::= \"<\" space \">\"\nspace ::= | \" \" | \"\\n\"{1,2}"
                .to_owned(),
            "root ::= \"x\" b\nb ::= root | \"y\"".to_owned(),
            "root ::= \"(\" root \")\" | [a-z]+ (\",\" root)*".to_owned(),
            "root ::= ws item (\",\" ws item)* ws\nws ::= [ \\t\\n]*\nitem ::= \"x\" root? | \"y\"".to_owned(),
            format!("root ::= {}", (0..1000).map(|i| format!("\"a{i}\"")).collect::<Vec<_>>().join(" | ")),
            crate::llama::schema_to_grammar("{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":1500}")
                .unwrap(),
        ] {
            assert!(check(&good).is_ok(), "{good}");
        }
    }

    #[test]
    fn what_it_does_not_is_refused() {
        let many = |name: &str, n: usize| (0..n).map(|i| format!("\"{name}{i}\"")).collect::<Vec<_>>().join(" | ");
        let ladder: String = (0..25).map(|i| format!("a{i} ::= a{n} a{n} | a{n}\n", n = i + 1)).collect();
        let ladder = format!("root ::= a0\n{ladder}a25 ::= \"x\" | \"\"");
        let choices: String =
            (0..10).map(|i| format!("d{i} ::= {}\n", vec![format!("d{}", i + 1); 10].join(" | "))).collect();
        let choices = format!("root ::= \"q\" d0\n{choices}d10 ::= \"x\"");
        let (open, close) = ("(".repeat(150), ")".repeat(150));
        let groups: String = (0..60).map(|i| format!("r{i} ::= {open}r{}{close}\n", i + 1)).collect();
        let chain: String = (0..5000).map(|i| format!("a{i} ::= a{}\n", i + 1)).collect();
        for (bad, expected) in [
            (format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000)), "nested deeper"),
            (format!("root ::= a0\n{chain}a5000 ::= \"a\""), "rules; at most"),
            ("root ::= \"a\"{5,2}".to_owned(), "{5,2}"),
            ("x".repeat(2 << 20), "bytes; at most"),
            ("root ::= (\"a\"?){1000} \"b\"".to_owned(), "may be empty"),
            ("e ::= \"q\"?\nroot ::= e root \"x\" | \"y\"".to_owned(), "left recursion"),
            ("root ::= a\na ::= b \"x\" | \"y\"\nb ::= [ ]* a?".to_owned(), "left recursion"),
            (format!("root ::= r0\n{groups}r60 ::= \"x\""), "lead to each other"),
            (format!("root ::= {}", many("a", 50_000)), "ways to go on"),
            (ladder, "ways to go on"),
            (choices, "ways to go on"),
            ("root ::= x{1000}\nx ::= \"a\" | \"\"".to_owned(), "may be empty"),
            (format!("root ::= {}", "\"a\"? ".repeat(300)), "may be empty"),
        ] {
            let error = check(&bad).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
