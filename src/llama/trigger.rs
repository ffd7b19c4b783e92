//! When a lazy grammar begins. llama.cpp matches regular expressions against all of the output, for each token; a word only
//! needs the last few tokens.

use std::collections::VecDeque;

use super::{Token, Vocab};

/// What switches a lazy grammar on.
#[derive(Clone, Debug, Default)]
pub struct TriggerSpec {
    /// The grammar sees the text from the word on.
    pub words: Vec<String>,
    /// Regular expressions for the whole output; the grammar sees the text from the first group on.
    pub patterns: Vec<String>,
    /// The grammar sees the text from the token on.
    pub tokens: Vec<Token>,
}

impl TriggerSpec {
    /// All that llama.cpp is to look for, words as patterns.
    pub(super) fn all_patterns(&self) -> Vec<String> {
        let words = self.words.iter().map(|word| format!("[\\s\\S]*?({})[\\s\\S]*", escape_regex(word)));
        self.patterns.iter().cloned().chain(words).collect()
    }
}

/// Keeps the tokens that may still be the beginning of a word, and gives them out when it is there.
pub(super) struct Watch {
    words: Vec<Vec<u8>>,
    tokens: Vec<Token>,
    longest: usize,
    recent: VecDeque<(Token, Vec<u8>)>,
    n_bytes: usize,
}

impl Watch {
    /// `None` where the whole output has to be looked at.
    pub fn new(spec: &TriggerSpec) -> Option<Self> {
        if !spec.patterns.is_empty() {
            return None;
        }
        let words: Vec<Vec<u8>> = spec.words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let longest = words.iter().map(Vec::len).max().unwrap_or(0);
        Some(Self { words, tokens: spec.tokens.clone(), longest, recent: VecDeque::new(), n_bytes: 0 })
    }

    /// The tokens that the grammar is to be given, once one of the triggers is among them.
    pub fn accept(&mut self, token: Token, vocab: Vocab<'_>) -> Option<Vec<Token>> {
        if self.tokens.contains(&token) {
            return Some(vec![token]);
        }
        let mut bytes = Vec::new();
        vocab.append_bytes(token, true, &mut bytes);
        self.push(token, bytes)
    }

    fn push(&mut self, token: Token, bytes: Vec<u8>) -> Option<Vec<Token>> {
        self.n_bytes += bytes.len();
        self.recent.push_back((token, bytes));
        let text: Vec<u8> = self.recent.iter().flat_map(|(_, bytes)| bytes).copied().collect();
        if self.words.iter().any(|word| !word.is_empty() && text.windows(word.len()).any(|window| window == word)) {
            return Some(self.recent.drain(..).map(|(token, _)| token).collect());
        }
        // What is before the longest word's length cannot be part of one that is still to be completed.
        while let Some((_, first)) = self.recent.front()
            && self.n_bytes - first.len() >= self.longest
        {
            self.n_bytes -= first.len();
            self.recent.pop_front();
        }
        None
    }
}

fn escape_regex(word: &str) -> String {
    let mut escaped = String::with_capacity(word.len());
    for character in word.chars() {
        if r".^$|()*+?[]{}\".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids that come out, when `texts` are pushed one by one: the index of each text is its id.
    fn found(words: &[&str], texts: &[&str]) -> Option<Vec<i32>> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let mut watch = Watch::new(&TriggerSpec { words, ..TriggerSpec::default() }).unwrap();
        let tokens = (0..).zip(texts).find_map(|(id, text)| watch.push(Token(id), text.as_bytes().to_vec()))?;
        Some(tokens.into_iter().map(|token| token.0).collect())
    }

    #[test]
    fn a_word_is_found_across_tokens_with_those_it_lies_in() {
        assert_eq!(found(&["<call>"], &["some long text ", "so far ", "<", "ca", "ll>{"]), Some(vec![1, 2, 3, 4]));
        assert_eq!(found(&["<call>"], &["x<call>y"]), Some(vec![0]));
        assert_eq!(found(&["<call>", "["], &["a", "b", "["]).unwrap().last(), Some(&2));
        assert_eq!(found(&["<call>"], &["<cal", "<call", "l"]), None);
        assert_eq!(found(&["<call>"], &["", "<call", "", ">"]).unwrap().last(), Some(&3));
    }

    #[test]
    fn patterns_need_all_of_the_output() {
        assert!(Watch::new(&TriggerSpec { patterns: vec!["^a".into()], ..TriggerSpec::default() }).is_none());
    }
}
