//! Regular expressions of JSON schemas, rewritten for llama.cpp's converter.
//!
//! The converter puts what a pattern allows between quotation marks as it stands. A quotation mark, a backslash or a control
//! character would have to be escaped there: such an answer would be no JSON, or JSON of another text. So every class is
//! cut down to characters that stand for themselves in JSON, and a pattern that asks for one of the others is refused.
//! What is left of a pattern allows less than it, and nothing else.

use std::iter::Peekable;
use std::str::Chars;

/// Ranges of code points, both ends included.
type Ranges = Vec<(u32, u32)>;

/// What JSON text cannot hold as it is, and what is no character.
const FORBIDDEN: &[(u32, u32)] = &[(0, 0x1f), (0x22, 0x22), (0x5c, 0x5c), (0x7f, 0x7f), (0xd800, 0xdfff)];
const LAST: u32 = 0x10_ffff;

/// What a backslash makes a character of the text; the converter needs the backslash for the first of them.
const SYNTAX: &str = "^$.|?*+()[]{}";
const PLAIN: &str = "-/,:;=!@#%&~'<> `_";

/// The pattern from the first character of the text to the last, in the converter's terms.
///
/// # Errors
/// What of it cannot be enforced.
pub fn rewrite(pattern: &str) -> Result<String, String> {
    let body = pattern.strip_prefix('^').unwrap_or(pattern);
    let is_escaped = |text: &str| text.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1;
    let (body, ends) = match body.strip_suffix('$') {
        Some(inner) if !is_escaped(inner) => (inner, true),
        _ => (body, false),
    };
    let any = class(&complement(&[]))? + "*";
    let before = if pattern.starts_with('^') { "" } else { &any };
    let after = if ends { "" } else { &any };
    let body = Rewriter { chars: body.chars().peekable(), text: String::new() }.run()?;
    // Only a group holds alternatives together with what is put around them.
    let grouped = if before.is_empty() && after.is_empty() { body } else { format!("({body})") };
    Ok(format!("^{before}{grouped}{after}$"))
}

struct Rewriter<'a> {
    chars: Peekable<Chars<'a>>,
    text: String,
}

impl Rewriter<'_> {
    fn run(mut self) -> Result<String, String> {
        while let Some(c) = self.chars.next() {
            match c {
                '.' => self.push_class(&complement(&[]))?,
                '[' => {
                    let ranges = self.class()?;
                    self.push_class(&ranges)?;
                }
                '\\' => self.escape()?,
                '*' | '+' | '?' => self.quantifier(c),
                '{' => {
                    self.text.push(c);
                    while let Some(c) = self.chars.next() {
                        if c == '}' {
                            self.quantifier(c);
                            break;
                        }
                        self.text.push(c);
                    }
                }
                '(' | ')' | '|' | '^' | '$' => {
                    self.text.push(c);
                    // The `?` of a group is no quantifier.
                    if c == '(' {
                        self.text.extend(self.chars.next_if_eq(&'?'));
                    }
                }
                c => self.literal(c)?,
            }
        }
        Ok(self.text)
    }

    /// Lazy or not, the same texts match.
    fn quantifier(&mut self, c: char) {
        self.text.push(c);
        self.chars.next_if_eq(&'?');
    }

    fn literal(&mut self, c: char) -> Result<(), String> {
        if is_forbidden(u32::from(c)) {
            return Err(format!("asks for {c:?}, which JSON text has only escaped"));
        }
        if !c.is_ascii() {
            // The converter takes a literal byte by byte.
            return self.push_class(&[(c.into(), c.into())]);
        }
        self.text.push(c);
        Ok(())
    }

    fn push_class(&mut self, ranges: &[(u32, u32)]) -> Result<(), String> {
        self.text.push_str(&class(ranges)?);
        Ok(())
    }

    fn escape(&mut self) -> Result<(), String> {
        match self.escaped()? {
            Escaped::Class(ranges) => self.push_class(&ranges),
            // As a class: the converter would repeat all of a literal, not its last character alone.
            Escaped::Char(c) if SYNTAX.contains(c) => self.push_class(&[(c.into(), c.into())]),
            Escaped::Char(c) => self.literal(c),
        }
    }

    /// Behind a backslash.
    fn escaped(&mut self) -> Result<Escaped, String> {
        let c = self.chars.next().ok_or("ends with a backslash")?;
        let char = |c| Ok(Escaped::Char(c));
        match c {
            'd' => Ok(Escaped::Class(digits())),
            'D' => Ok(Escaped::Class(complement(&digits()))),
            'w' => Ok(Escaped::Class(word())),
            'W' => Ok(Escaped::Class(complement(&word()))),
            's' => Ok(Escaped::Class(space())),
            'S' => Ok(Escaped::Class(complement(&space()))),
            't' => char('\t'),
            'n' => char('\n'),
            'r' => char('\r'),
            'f' => char('\u{c}'),
            'v' => char('\u{b}'),
            'x' => self.hex(2).map(Escaped::Char),
            'u' => self.hex(4).map(Escaped::Char),
            '\\' | '"' => char(c),
            c if SYNTAX.contains(c) || PLAIN.contains(c) => char(c),
            c => Err(format!("has `\\{c}`, which is not supported")),
        }
    }

    fn hex(&mut self, n: usize) -> Result<char, String> {
        let digits: String = self.chars.by_ref().take(n).collect();
        let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == n);
        code.and_then(char::from_u32).ok_or_else(|| format!("has the bad escape `{digits}`"))
    }

    /// Behind `[`.
    fn class(&mut self) -> Result<Ranges, String> {
        let is_negated = self.chars.next_if_eq(&'^').is_some();
        let mut ranges = Ranges::new();
        loop {
            let first = match self.chars.next().ok_or("has a class without its `]`")? {
                ']' => break,
                '\\' => match self.escaped_in_class()? {
                    Escaped::Class(class) => {
                        ranges.extend(class);
                        continue;
                    }
                    Escaped::Char(c) => c,
                },
                c => c,
            };
            let last = self.end_of_range(first)?;
            if last < first {
                return Err(format!("has the range `{first}-{last}`, which is the wrong way round"));
            }
            ranges.push((first.into(), last.into()));
        }
        Ok(if is_negated { complement(&ranges) } else { ranges })
    }

    fn escaped_in_class(&mut self) -> Result<Escaped, String> {
        // Outside of a class this is a border between words.
        match self.chars.next_if_eq(&'b') {
            Some(_) => Ok(Escaped::Char('\u{8}')),
            None => self.escaped(),
        }
    }

    /// The other end of `first-`; `first` itself where no range begins.
    fn end_of_range(&mut self, first: char) -> Result<char, String> {
        let mut ahead = self.chars.clone();
        if ahead.next() != Some('-') || matches!(ahead.next(), Some(']') | None) {
            return Ok(first);
        }
        self.chars.next();
        match self.chars.next() {
            Some('\\') => match self.escaped_in_class()? {
                Escaped::Char(c) => Ok(c),
                Escaped::Class(_) => Err("has a range that ends in a class".to_owned()),
            },
            Some(c) => Ok(c),
            None => Ok(first),
        }
    }
}

enum Escaped {
    Char(char),
    Class(Ranges),
}

fn digits() -> Ranges {
    vec![(0x30, 0x39)]
}

fn word() -> Ranges {
    vec![(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)]
}

fn space() -> Ranges {
    vec![
        (9, 13),
        (0x20, 0x20),
        (0xa0, 0xa0),
        (0x1680, 0x1680),
        (0x2000, 0x200a),
        (0x2028, 0x2029),
        (0x202f, 0x202f),
        (0x205f, 0x205f),
        (0x3000, 0x3000),
        (0xfeff, 0xfeff),
    ]
}

fn is_forbidden(code: u32) -> bool {
    FORBIDDEN.iter().any(|(first, last)| (*first..=*last).contains(&code))
}

/// All code points but these.
fn complement(ranges: &[(u32, u32)]) -> Ranges {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut next = 0;
    let mut found = Ranges::new();
    for (first, last) in sorted {
        if next < first {
            found.push((next, first - 1));
        }
        next = next.max(last.saturating_add(1));
    }
    if next <= LAST {
        found.push((next, LAST));
    }
    found
}

/// A class of the code points that JSON text can hold as they are.
fn class(ranges: &[(u32, u32)]) -> Result<String, String> {
    // Both are outside of what is wanted, so its complement is both together.
    let mut outside = complement(ranges);
    outside.extend(FORBIDDEN);
    let allowed = complement(&outside);
    if allowed.is_empty() {
        return Err("asks for characters that JSON text has only escaped".to_owned());
    }
    let mut text = String::from("[");
    for (first, last) in allowed {
        push_code(&mut text, first);
        if last > first {
            text.push('-');
            push_code(&mut text, last);
        }
    }
    text.push(']');
    Ok(text)
}

fn push_code(text: &mut String, code: u32) {
    match char::from_u32(code) {
        Some(c) if c.is_ascii_alphanumeric() => text.push(c),
        _ if code < 0x100 => text.push_str(&format!("\\x{code:02x}")),
        _ if code < 0x1_0000 => text.push_str(&format!("\\u{code:04x}")),
        _ => text.push_str(&format!("\\U{code:08x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: &str = r"[\x20-\x21\x23-\x5b\x5d-\x7e\x80-\ud7ff\ue000-\U0010ffff]";

    #[test]
    fn patterns_are_anchored_and_classes_spelt_out() {
        for (pattern, expected) in [
            ("^a$", "^a$"),
            ("^a", &format!("^(a){ANY}*$")),
            ("a\\$", &format!("^{ANY}*(a[\\x24]){ANY}*$")),
            ("^\\d[\\d\\w]$", "^[0-9][0-9A-Z\\x5fa-z]$"),
            ("^a.b$", &format!("^a{ANY}b$")),
            ("^a+?b??c{2,3}?$", "^a+b?c{2,3}$"),
            ("^(?:a|b)?$", "^(?:a|b)?$"),
            ("^[^a-z]$", r"^[\x20-\x21\x23-\x5b\x5d-\x60\x7b-\x7e\x80-\ud7ff\ue000-\U0010ffff]$"),
            ("^[!-~]$", r"^[\x21\x23-\x5b\x5d-\x7e]$"),
            ("^[a\"-]$", r"^[\x2da]$"),
            ("^v1\\.?é+$", r"^v1[\x2e]?[\xe9]+$"),
            ("^[\\]x]$", r"^[\x5dx]$"),
            ("^[\\s\\S]*$", &format!("^{ANY}*$")),
            (
                "^\\S\\s$",
                r"^[\x21\x23-\x5b\x5d-\x7e\x80-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ud7ff\ue000-\ufefe\uff00-\U0010ffff][\x20\xa0\u1680\u2000-\u200a\u2028-\u2029\u202f\u205f\u3000\ufeff]$",
            ),
            ("^\\u0041\\x42\\.\\/$", "^AB[\\x2e]/$"),
        ] {
            assert_eq!(rewrite(pattern).as_deref(), Ok(expected), "{pattern}");
        }
    }

    #[test]
    fn what_json_has_only_escaped_is_refused() {
        for pattern in [
            "^a\"b$",
            "^a\\\\b$",
            "^a\\nb$",
            "^[\"\\\\]$",
            "^[\\n]$",
            "^\\bx$",
            "^(a)\\1$",
            "^\\p{L}$",
            "^[a",
            "^a\\",
            "^[z-a]$",
        ] {
            assert!(rewrite(pattern).is_err(), "{pattern}: {:?}", rewrite(pattern));
        }
    }
}
