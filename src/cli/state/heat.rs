//! An error along the positions as a line of characters: darker is worse.

use std::io::IsTerminal;

/// Upper bounds of the steps; an error of 0 is below the first, what passes the last is worst.
///
/// Cut where the causes are: below 1e-3 is rounding of an f16 cache, below 1e-2 that of bf16 arithmetic, below 1e-1 that of
/// quantized weights or activations, and above it the values are other ones.
const STEPS: [f64; 7] = [1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1];
const BLOCKS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const PLAIN: [char; 9] = ['.', ':', '-', '=', '+', 'o', 'x', '%', '#'];

/// What the characters mean.
pub(super) const LEGEND: &str = "equal, then below 1e-5 1e-4 1e-3 3e-3 1e-2 3e-2 1e-1, and above";

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Style {
    /// Unicode blocks in colours; else ASCII.
    pub fancy: bool,
}

impl Style {
    /// Blocks and colours on a terminal, unless `NO_COLOR` is set (no-color.org); ASCII elsewhere.
    pub fn of_stdout() -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { fancy: std::io::stdout().is_terminal() && !no_color }
    }

    /// The nine characters, from equal to worst.
    pub fn scale(self) -> String {
        let characters = if self.fancy { BLOCKS } else { PLAIN };
        characters.iter().map(char::to_string).collect::<Vec<_>>().join(" ")
    }

    /// One character for each error.
    pub fn line(self, errors: &[f64]) -> String {
        let levels = errors.iter().map(|error| level(*error));
        if !self.fancy {
            return levels.map(|level| PLAIN[level]).collect();
        }
        let mut line = String::new();
        let mut colour = "";
        for level in levels {
            let wanted = match level {
                0..=3 => "\x1b[32m",
                4..=6 => "\x1b[33m",
                _ => "\x1b[31m",
            };
            if colour != wanted {
                line.push_str(wanted);
                colour = wanted;
            }
            line.push(BLOCKS[level]);
        }
        if !colour.is_empty() {
            line.push_str("\x1b[0m");
        }
        line
    }
}

/// 0 for no error at all, 8 for the worst. What is not a number is worst.
fn level(error: f64) -> usize {
    if error == 0.0 {
        return 0;
    }
    1 + STEPS.iter().position(|bound| error < *bound).unwrap_or(STEPS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        let errors = [0.0, 1e-6, 1e-5, 5e-4, 1e-3, 5e-3, 2e-2, 5e-2, 0.1, 1.4, f64::INFINITY, f64::NAN];
        assert_eq!(Style { fancy: false }.line(&errors), ".:-=+ox%####");
        assert_eq!(Style { fancy: true }.line(&[0.0, 1e-6, 5e-3]), "\x1b[32m·▁\x1b[33m▅\x1b[0m");
        assert_eq!(Style { fancy: true }.line(&[]), "");
        assert_eq!(Style { fancy: false }.scale(), ". : - = + o x % #");
    }
}
