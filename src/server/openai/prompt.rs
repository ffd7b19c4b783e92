//! The prompts of text completions, in all the forms that clients send.

use serde_json::Value;

use crate::{
    engine::EngineError,
    llama::Token,
    server::{
        error::ApiError,
        fields::{Fields, integer, wrong},
        state::Backend,
    },
};

/// One prompt: texts and token ids in a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Ids(Vec<Token>),
}

impl Prompt {
    /// A text.
    pub fn text(text: &str) -> Self {
        Self(vec![Part::Text(text.to_owned())])
    }

    /// Without BOS even where the model wants one: an empty prompt has an empty answer on every model.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|part| match part {
            Part::Text(text) => text.is_empty(),
            Part::Ids(ids) => ids.is_empty(),
        })
    }

    /// The tokens. BOS is put in front where the model wants it and the prompt begins with text.
    pub fn tokens(&self, backend: &Backend, add_special: bool) -> Result<Vec<Token>, EngineError> {
        let mut tokens = Vec::new();
        for (index, part) in self.0.iter().enumerate() {
            match part {
                Part::Text(text) => tokens.extend(backend.tokenize(text, add_special && index == 0, true)?),
                Part::Ids(ids) => tokens.extend(ids),
            }
        }
        Ok(tokens)
    }

    /// As a client reads it.
    pub fn to_text(&self, backend: &Backend) -> String {
        let texts = self.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Ids(ids) => backend.detokenize(ids),
        });
        texts.collect()
    }
}

/// The prompts in a field: a text, ids, a row of both, or an array of these.
pub fn read_all(fields: &Fields, name: &str, n_vocab: u32) -> Result<Vec<Prompt>, ApiError> {
    let path = fields.path(name);
    match fields.get(name) {
        None => Err(ApiError::field(path, "missing; expected a string or an array of token ids")),
        Some(Value::Array(items)) if items.is_empty() => Err(ApiError::field(path, "is an empty array")),
        // Ids beside each other are one prompt; so is what stands among them.
        Some(value @ Value::Array(items)) if items.iter().any(Value::is_number) => {
            Ok(vec![one(&path, value, n_vocab)?])
        }
        Some(Value::Array(items)) => {
            items.iter().enumerate().map(|(index, item)| one(&format!("{path}[{index}]"), item, n_vocab)).collect()
        }
        Some(value) => Ok(vec![one(&path, value, n_vocab)?]),
    }
}

/// One prompt in a field.
pub fn read_one(fields: &Fields, name: &str, n_vocab: u32) -> Result<Option<Prompt>, ApiError> {
    fields.get(name).map(|value| one(&fields.path(name), value, n_vocab)).transpose()
}

fn one(path: &str, value: &Value, n_vocab: u32) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => Ok(Prompt::text(text)),
        Value::Array(items) if items.is_empty() => Err(ApiError::field(path, "is an empty array")),
        Value::Array(items) => row(path, items, n_vocab),
        Value::Object(_) => {
            let object = Fields::at(path.to_owned(), value)?;
            if object.array("multimodal_data")?.is_some_and(|data| !data.is_empty()) {
                return Err(ApiError::field(object.path("multimodal_data"), "image input is not supported"));
            }
            object.required_string("prompt_string").map(Prompt::text)
        }
        other => Err(wrong(path.to_owned(), "a string or an array of token ids", other)),
    }
}

fn row(path: &str, items: &[Value], n_vocab: u32) -> Result<Prompt, ApiError> {
    let mut parts: Vec<Part> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = || format!("{path}[{index}]");
        if let Value::String(text) = item {
            parts.push(Part::Text(text.clone()));
            continue;
        }
        let id = integer(item).ok_or_else(|| wrong(path(), "a token id or a string", item))?;
        let Some(id) = i32::try_from(id).ok().filter(|&id| u32::try_from(id).is_ok_and(|id| id < n_vocab)) else {
            let problem = format_args!("token id {id} is outside the vocabulary of {n_vocab} tokens");
            return Err(ApiError::field(path(), problem));
        };
        match parts.last_mut() {
            Some(Part::Ids(ids)) => ids.push(Token(id)),
            _ => parts.push(Part::Ids(vec![Token(id)])),
        }
    }
    Ok(Prompt(parts))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(prompt: Value) -> Result<Vec<Prompt>, ApiError> {
        let body = json!({"prompt": prompt});
        read_all(&Fields::root(body.as_object().unwrap()), "prompt", 256)
    }

    fn ids(ids: &[i32]) -> Part {
        Part::Ids(ids.iter().copied().map(Token).collect())
    }

    #[test]
    fn all_forms_are_read() {
        let text = |text: &str| Part::Text(text.into());
        for (prompt, expected) in [
            (json!("ab"), vec![Prompt(vec![text("ab")])]),
            (json!([1, 2]), vec![Prompt(vec![ids(&[1, 2])])]),
            (json!(["a", "b"]), vec![Prompt(vec![text("a")]), Prompt(vec![text("b")])]),
            (json!([1, "a", 2, 3]), vec![Prompt(vec![ids(&[1]), text("a"), ids(&[2, 3])])]),
            (json!([[1, 2], "b"]), vec![Prompt(vec![ids(&[1, 2])]), Prompt(vec![text("b")])]),
            (json!({"prompt_string": "x"}), vec![Prompt(vec![text("x")])]),
            (json!([{"prompt_string": "x"}, ["y", 5]]), {
                vec![Prompt(vec![text("x")]), Prompt(vec![text("y"), ids(&[5])])]
            }),
        ] {
            assert_eq!(read(prompt.clone()), Ok(expected), "{prompt}");
        }
    }

    #[test]
    fn bad_prompts_are_named_by_path() {
        for (prompt, path, problem) in [
            (json!(null), "prompt", "missing; expected a string or an array of token ids"),
            (json!([]), "prompt", "is an empty array"),
            (json!(true), "prompt", "expected a string or an array of token ids, got a boolean"),
            (json!([1, 2.5]), "prompt[1]", "expected a token id or a string, got a fraction"),
            (json!([1, 256]), "prompt[1]", "token id 256 is outside the vocabulary of 256 tokens"),
            (json!([-1]), "prompt[0]", "token id -1 is outside the vocabulary of 256 tokens"),
            (json!(["a", []]), "prompt[1]", "is an empty array"),
            (json!([["a", {}]]), "prompt[0][1]", "expected a token id or a string, got an object"),
            (json!({}), "prompt.prompt_string", "missing; expected a string"),
        ] {
            assert_eq!(read(prompt.clone()), Err(ApiError::field(path, problem)), "{prompt}");
        }
    }
}
