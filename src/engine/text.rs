//! From token bytes to text: whole UTF-8 characters only, and nothing that may still become a stop string.

use crate::llama::Token;

use super::{Piece, TokenLogprob};

/// Turns the bytes of successive tokens into [`Piece`]s.
///
/// Joined pieces are the same text whatever the token borders are: what is held back is released by the next token or by
/// [`finish`](Self::finish).
pub(super) struct TextAssembler {
    stops: Vec<String>,
    /// Decoded text that has not been released; may end in the beginning of a stop string.
    held: String,
    /// The bytes of a character that is not complete.
    partial: Vec<u8>,
    /// Tokens whose text has not been fully released.
    pending: Vec<Pending>,
    /// Bytes of text decoded and released so far.
    n_decoded: usize,
    n_released: usize,
}

struct Pending {
    token: Token,
    logprob: Option<TokenLogprob>,
    /// The length of all text up to its end.
    end: usize,
}

/// What came of one token.
#[derive(Debug, PartialEq)]
pub(super) enum Pushed {
    /// Text to show (may be empty).
    Piece(Piece),
    /// A stop string appeared: the text before it, and the string.
    Stop(Piece, String),
}

impl TextAssembler {
    pub fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
            held: String::new(),
            partial: Vec::new(),
            pending: Vec::new(),
            n_decoded: 0,
            n_released: 0,
        }
    }

    /// Takes a token and its bytes.
    pub fn push(&mut self, token: Token, bytes: &[u8], logprob: Option<TokenLogprob>) -> Pushed {
        self.partial.extend_from_slice(bytes);
        let searched_from = self.held.len();
        self.decode();
        // A token that ends inside a character belongs to the piece that completes the character.
        let waits = usize::from(!self.partial.is_empty());
        self.pending.push(Pending { token, logprob, end: self.n_decoded + waits });
        if let Some((at, stop)) = self.find_stop(searched_from) {
            self.held.truncate(at);
            self.partial.clear();
            let piece = self.release(at, true);
            return Pushed::Stop(piece, stop);
        }
        let keep = self.longest_stop_start();
        Pushed::Piece(self.release(self.held.len() - keep, false))
    }

    /// What is left when the generation ends without a stop string. Bytes of an incomplete character are dropped.
    pub fn finish(&mut self) -> Piece {
        self.partial.clear();
        self.release(self.held.len(), true)
    }

    /// Moves complete characters from `partial` to `held`. An invalid byte becomes U+FFFD once it is sure that no later
    /// byte can mend it.
    fn decode(&mut self) {
        let mut rest: &[u8] = &self.partial;
        let before = self.held.len();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.held.push_str(text);
                    rest = &[];
                    break;
                }
                Err(err) => {
                    let (valid, after) = rest.split_at(err.valid_up_to());
                    self.held.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    let Some(invalid) = err.error_len() else {
                        rest = after;
                        break;
                    };
                    self.held.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[invalid..];
                }
            }
        }
        self.n_decoded += self.held.len() - before;
        self.partial = rest.to_vec();
    }

    /// The earliest stop string; of those that begin at one place, the first of the list. Text before `new_from` was searched
    /// already, but a stop string may begin in it.
    fn find_stop(&self, new_from: usize) -> Option<(usize, String)> {
        let mut best: Option<(usize, &String)> = None;
        for stop in &self.stops {
            let mut from = new_from.saturating_sub(stop.len());
            while !self.held.is_char_boundary(from) {
                from -= 1;
            }
            if let Some(at) = self.held[from..].find(stop.as_str()).map(|at| at + from)
                && best.is_none_or(|(first, _)| at < first)
            {
                best = Some((at, stop));
            }
        }
        best.map(|(at, stop)| (at, stop.clone()))
    }

    /// Length of the longest end of `held` that is the beginning of a stop string.
    fn longest_stop_start(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = |stop: &String| {
            let most = held.len().min(stop.len().saturating_sub(1));
            (1..=most).rev().find(|&n| stop.as_bytes()[..n] == held[held.len() - n..]).unwrap_or(0)
        };
        // A stop string begins at a character, so what is before it ends at one.
        self.stops.iter().map(longest).max().unwrap_or(0)
    }

    fn release(&mut self, len: usize, all_tokens: bool) -> Piece {
        let text: String = self.held.drain(..len).collect();
        self.n_released += text.len();
        let is_shown = |pending: &Pending| pending.end <= self.n_released;
        let n_shown = self.pending.iter().take_while(|pending| is_shown(pending)).count();
        let n_done = if all_tokens { self.pending.len() } else { n_shown };
        let mut piece = Piece { text, ..Piece::default() };
        for (index, pending) in self.pending.drain(..n_done).enumerate() {
            piece.tokens.push(pending.token);
            piece.logprobs.extend(pending.logprob.filter(|_| index < n_shown));
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` in chunks of `size` and returns the pieces' texts and the stop string.
    fn run(bytes: &[u8], size: usize, stops: &[&str]) -> (Vec<String>, Option<String>) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut assembler = TextAssembler::new(&stops);
        let mut texts = Vec::new();
        let mut n_tokens = 0;
        for (index, chunk) in bytes.chunks(size).enumerate() {
            match assembler.push(Token(index as i32), chunk, None) {
                Pushed::Piece(piece) => {
                    n_tokens += piece.tokens.len();
                    texts.push(piece.text);
                }
                Pushed::Stop(piece, stop) => {
                    texts.push(piece.text);
                    return (texts, Some(stop));
                }
            }
        }
        let last = assembler.finish();
        n_tokens += last.tokens.len();
        texts.push(last.text);
        assert_eq!(n_tokens, bytes.chunks(size).count(), "every token is in exactly one piece");
        (texts, None)
    }

    #[test]
    fn characters_are_never_split() {
        let text = "a\u{e9}\u{4e2d}\u{1f600}z";
        for size in 1..=text.len() {
            let (pieces, _) = run(text.as_bytes(), size, &[]);
            assert_eq!(pieces.concat(), text, "chunks of {size}");
        }
        let (pieces, _) = run(text.as_bytes(), 1, &[]);
        assert_eq!(pieces.iter().filter(|piece| !piece.is_empty()).count(), 5);
    }

    #[test]
    fn invalid_bytes_are_replaced_and_a_cut_character_is_dropped() {
        assert_eq!(run(b"a\xffb", 1, &[]).0.concat(), "a\u{fffd}b");
        assert_eq!(run(b"a\xf0\x9f\x98", 1, &[]).0.concat(), "a");
        assert_eq!(run(b"\xe4\xb8a", 1, &[]).0.concat(), "\u{fffd}a");
    }

    #[test]
    fn stop_strings_across_tokens() {
        for size in 1..12 {
            let (pieces, stop) = run(b"one STOP two", size, &["STOP"]);
            assert_eq!((pieces.concat().as_str(), stop.as_deref()), ("one ", Some("STOP")), "chunks of {size}");
            assert!(pieces.iter().all(|piece| !piece.contains('S')), "nothing of it is shown: {pieces:?}");
        }
    }

    #[test]
    fn the_earliest_stop_wins_and_a_false_start_is_released() {
        let (pieces, stop) = run(b"abcabd!", 1, &["abd", "bd!"]);
        assert_eq!((pieces.concat().as_str(), stop.as_deref()), ("abc", Some("abd")));
        let (pieces, stop) = run(b"STO", 1, &["STOP"]);
        assert_eq!((pieces.concat().as_str(), stop), ("STO", None));
        let (pieces, stop) = run("\u{e9}\u{4e2d}".as_bytes(), 1, &["\u{4e2d}"]);
        assert_eq!((pieces.concat().as_str(), stop.as_deref()), ("\u{e9}", Some("\u{4e2d}")));
    }

    #[test]
    fn logprobs_come_with_their_tokens_and_not_for_swallowed_ones() {
        let mut assembler = TextAssembler::new(&["cd".to_owned()]);
        let logprob = |id| Some(TokenLogprob { token: Token(id), logprob: -1.0, top: Vec::new() });
        let mut shown = Vec::new();
        for (id, text) in [(0, "ab"), (1, "c"), (2, "d")] {
            let (Pushed::Piece(piece) | Pushed::Stop(piece, _)) =
                assembler.push(Token(id), text.as_bytes(), logprob(id));
            shown.extend(piece.logprobs.into_iter().map(|logprob| logprob.token.0));
        }
        assert_eq!(shown, [0]);
    }

    #[test]
    fn tokens_without_text_are_told_at_once() {
        let mut assembler = TextAssembler::new(&[]);
        let piece = Piece { tokens: vec![Token(7)], ..Piece::default() };
        assert_eq!(assembler.push(Token(7), b"", None), Pushed::Piece(piece));
    }
}
