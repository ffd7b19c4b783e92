//! How many ways a grammar has to go on from one place. llama.cpp keeps a stack for each of them and tries every token of the
//! vocabulary on each, so their number is the cost of a token; and a rule that leads back to itself before any character
//! gives it ways without end.

use std::collections::HashMap;

use super::grammar_guard::Token;

/// Ways to go on: at this number a token takes seconds.
const MAX_WAYS: u64 = 3000;
/// Rules and groups one within the other: the walk here recurses for each, and so does llama.cpp's.
const MAX_NESTED: usize = 2600;

/// One alternative after the other, each a row of elements.
type Choice = Vec<Vec<Element>>;

struct Element {
    what: What,
    min: u64,
    max: u64,
}

enum What {
    /// At least one character.
    Characters,
    Nothing,
    Rule(usize),
    Group(Choice),
}

/// Why llama.cpp would not manage a grammar; `None` when it would. Of what is no grammar, nothing is said.
pub(super) fn problem(tokens: &[Token<'_>]) -> Option<String> {
    let grammar = Grammar::read(tokens);
    let may_be_empty = grammar.may_be_empty();
    let known = vec![Known::Not; grammar.rules.len()];
    let mut walk = Walk { grammar: &grammar, may_be_empty, known, n_nested: 0 };
    let mut rules = 0..grammar.rules.len();
    rules
        .clone()
        .find_map(|rule| walk.rule(rule).err())
        .or_else(|| rules.find_map(|rule| walk.every_place(&grammar.rules[rule]).err()))
}

struct Grammar<'a> {
    names: Vec<&'a str>,
    rules: Vec<Choice>,
}

impl<'a> Grammar<'a> {
    fn read(tokens: &[Token<'a>]) -> Self {
        let mut reader = Reader { tokens, at: 0, numbers: HashMap::new() };
        let mut rules: HashMap<usize, Choice> = HashMap::new();
        while reader.at < tokens.len() {
            match reader.rule_begins() {
                Some(name) => {
                    reader.at += 2;
                    let number = reader.number(name);
                    let choice = reader.choice();
                    // A name that is defined twice has its last meaning.
                    rules.insert(number, choice);
                }
                None => reader.at += 1,
            }
        }
        let mut names = vec![""; reader.numbers.len()];
        reader.numbers.iter().for_each(|(name, number)| names[*number] = name);
        let rules = (0..names.len()).map(|number| rules.remove(&number).unwrap_or_default()).collect();
        Self { names, rules }
    }

    fn may_be_empty(&self) -> Vec<bool> {
        let mut found = vec![false; self.rules.len()];
        loop {
            let mut has_changed = false;
            for (number, rule) in self.rules.iter().enumerate() {
                if !found[number] && choice_may_be_empty(rule, &found) {
                    (found[number], has_changed) = (true, true);
                }
            }
            if !has_changed {
                return found;
            }
        }
    }
}

struct Reader<'t, 'a> {
    tokens: &'t [Token<'a>],
    at: usize,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Reader<'_, 'a> {
    fn number(&mut self, name: &'a str) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(name).or_insert(next)
    }

    fn rule_begins(&self) -> Option<&'a str> {
        match self.tokens.get(self.at..self.at + 2) {
            Some([Token::Name(name), Token::Defines]) => Some(name),
            _ => None,
        }
    }

    /// Up to the end of a rule or group; nested no deeper than the guard allows.
    fn choice(&mut self) -> Choice {
        let mut choice = vec![Vec::new()];
        while let Some(&token) = self.tokens.get(self.at) {
            if self.rule_begins().is_some() || token == Token::Close {
                break;
            }
            self.at += 1;
            let what = match token {
                Token::Or => {
                    choice.push(Vec::new());
                    continue;
                }
                Token::Name(name) => What::Rule(self.number(name)),
                Token::Terminal { is_empty: false } => What::Characters,
                Token::Open => {
                    let group = self.choice();
                    self.at += usize::from(self.tokens.get(self.at) == Some(&Token::Close));
                    What::Group(group)
                }
                _ => What::Nothing,
            };
            let (min, max) = self.times();
            if let Some(row) = choice.last_mut() {
                row.push(Element { what, min, max });
            }
        }
        choice
    }

    /// Of several marks in a row each repeats what those before it do.
    fn times(&mut self) -> (u64, u64) {
        let (mut least, mut most) = (1u64, 1u64);
        while let Some(Token::Repeat { min, max }) = self.tokens.get(self.at) {
            self.at += 1;
            (least, most) = (least.saturating_mul(*min), most.saturating_mul(*max));
        }
        (least, most)
    }
}

fn choice_may_be_empty(choice: &Choice, rules: &[bool]) -> bool {
    choice.iter().any(|row| row.iter().all(|element| element.min == 0 || element.what.may_be_empty(rules)))
}

impl What {
    fn may_be_empty(&self, rules: &[bool]) -> bool {
        match self {
            Self::Characters => false,
            Self::Nothing => true,
            Self::Rule(number) => rules[*number],
            Self::Group(choice) => choice_may_be_empty(choice, rules),
        }
    }
}

#[derive(Clone, Copy)]
enum Known {
    Not,
    /// It is being counted.
    Open,
    Ways(u64),
}

struct Walk<'g, 'a> {
    grammar: &'g Grammar<'a>,
    may_be_empty: Vec<bool>,
    known: Vec<Known>,
    n_nested: usize,
}

impl Walk<'_, '_> {
    fn rule(&mut self, number: usize) -> Result<u64, String> {
        match self.known[number] {
            Known::Ways(ways) => return Ok(ways),
            Known::Open => {
                let name = self.grammar.names[number];
                return Err(format!(
                    "left recursion: the rule `{name}` of the grammar leads to itself before any character"
                ));
            }
            Known::Not => {}
        }
        self.known[number] = Known::Open;
        let grammar = self.grammar;
        let ways = self.choice(&grammar.rules[number])?;
        self.known[number] = Known::Ways(ways);
        Ok(ways)
    }

    fn choice(&mut self, choice: &Choice) -> Result<u64, String> {
        self.n_nested += 1;
        if self.n_nested > MAX_NESTED {
            return Err("the rules of the grammar lead to each other too many times".to_owned());
        }
        let mut all = 0u64;
        for row in choice {
            all = all.saturating_add(self.row(row)?);
        }
        self.n_nested -= 1;
        limited(all)
    }

    /// The ways from the beginning of a row: those of its first element, and of the next as long as nothing need come before.
    fn row(&mut self, row: &[Element]) -> Result<u64, String> {
        let mut all = 0u64;
        for element in row {
            all = limited(all.saturating_add(self.element(element)?))?;
            if element.min > 0 && !element.what.may_be_empty(&self.may_be_empty) {
                return Ok(all);
            }
        }
        // On to what comes behind.
        Ok(all.saturating_add(1))
    }

    fn element(&mut self, element: &Element) -> Result<u64, String> {
        let ways = match &element.what {
            What::Characters | What::Nothing => 1,
            What::Group(choice) => self.choice(choice)?,
            What::Rule(number) => self.rule(*number)?,
        };
        if !element.what.may_be_empty(&self.may_be_empty) {
            return Ok(ways);
        }
        // Of an endless repetition the part beyond the minimum is one loop, whose stacks do not grow: (call? space)+ is what
        // llama.cpp itself makes for many chat formats.
        let n_times = if element.max == u64::MAX { element.min } else { element.max };
        Ok(ways.saturating_mul(n_times.max(1)))
    }

    /// An answer gets to every place of every row.
    fn every_place(&mut self, choice: &Choice) -> Result<(), String> {
        for row in choice {
            for (at, element) in row.iter().enumerate() {
                self.row(&row[at..])?;
                if let What::Group(choice) = &element.what {
                    self.every_place(choice)?;
                }
            }
        }
        Ok(())
    }
}

fn limited(ways: u64) -> Result<u64, String> {
    if ways > MAX_WAYS {
        return Err(format!("the grammar has more than {MAX_WAYS} ways to go on from one place"));
    }
    Ok(ways)
}
