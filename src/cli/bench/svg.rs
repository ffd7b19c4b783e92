//! The results as bars, in a file that any browser shows.

use std::fmt::Write;

use super::Report;
use super::row::{Row, Spread};
use super::table::number;

const WIDTH: f64 = 900.0;
/// Where bars begin, right of their names, and the most they may be long.
const LEFT: f64 = 260.0;
const LENGTH: f64 = 480.0;
const LINE: f64 = 22.0;

/// A value to draw of each row that has it.
type Chart = (&'static str, fn(&Row) -> Option<Spread>);

const CHARTS: [Chart; 5] = [
    ("First byte, ms (shorter is better)", |row| row.first_byte),
    ("First byte without the provider, ms (shorter is better)", |row| row.handoff),
    ("Restore, ms (shorter is better)", |row| row.restore),
    ("Prefill, tokens/s (longer is better)", |row| row.prefill_rate),
    ("Decode, tokens/s, all sequences together (longer is better)", |row| row.decode_rate),
];

pub(super) fn draw(report: &Report) -> String {
    let mut body = String::new();
    let mut y = 30.0;
    text(&mut body, 20.0, y, "bold 16px sans-serif", &super::origin::onebit());
    for (name, value) in report.origin.lines() {
        y += 18.0;
        text(&mut body, 20.0, y, "12px sans-serif", &format!("{name}: {value}"));
    }
    for (title, value) in CHARTS {
        let bars: Vec<_> = report.rows.iter().filter_map(|row| Some((label(row), value(row)?))).collect();
        if !bars.is_empty() {
            y = chart(&mut body, y + 40.0, title, &bars);
        }
    }
    let height = y + 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

fn label(row: &Row) -> String {
    let at_once = if row.parallel > 1 { format!(", {} at once", row.parallel) } else { String::new() };
    format!("{} {}, {} tokens{at_once}", row.device, row.kind.name(), row.n_prompt)
}

/// Draws bars with a line from the least to the most of each; returns where it ended.
fn chart(body: &mut String, top: f64, title: &str, bars: &[(String, Spread)]) -> f64 {
    text(body, 20.0, top, "bold 13px sans-serif", title);
    let longest = bars.iter().map(|(_, spread)| spread.most).fold(f64::MIN_POSITIVE, f64::max);
    let scaled = |value: f64| value / longest * LENGTH;
    let mut y = top + 8.0;
    for (name, spread) in bars {
        let middle = y + LINE / 2.0;
        text(body, 20.0, middle + 4.0, "12px sans-serif", name);
        let length = scaled(spread.median);
        let height = LINE - 6.0;
        let _ = writeln!(
            body,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"{height}\" fill=\"#4a7ab5\"/>",
            y + 3.0
        );
        let (from, to) = (LEFT + scaled(spread.least), LEFT + scaled(spread.most));
        let _ = writeln!(
            body,
            "<line x1=\"{from:.1}\" y1=\"{middle:.1}\" x2=\"{to:.1}\" y2=\"{middle:.1}\" stroke=\"#222\"/>"
        );
        text(body, to + 8.0, middle + 4.0, "12px sans-serif", &number(spread.median));
        y += LINE;
    }
    y
}

fn text(body: &mut String, x: f64, y: f64, font: &str, text: &str) {
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" style=\"font: {font}\">{}</text>", escaped(text));
}

/// Characters that XML takes for its own, or does not allow at all, are replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_the_drawing() {
        assert_eq!(escaped("a<b>&\"c\"\u{1b}[2J\u{ffff}"), "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}[2J\u{fffd}");
    }
}
