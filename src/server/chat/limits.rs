//! What llama.cpp's converter does not survive in any schema, a tool's or an answer's: it matches names with a regular
//! expression that recurses for each character, and builds a schema once for each entry of its `type`.

use serde_json::Value;

use crate::server::error::ApiError;

/// Bytes of a name in a schema.
pub const MAX_NAME: usize = 256;

/// Refuses names that are too long; takes repeated entries out of `type`.
pub fn limit(path: &str, schema: &mut Value) -> Result<(), ApiError> {
    let too_long = |what: &str, name: &str| {
        let shown: String = name.chars().take(40).collect();
        ApiError::field(path, format_args!("the {what} `{shown}...` is longer than {MAX_NAME} bytes"))
    };
    match schema {
        Value::Object(object) => {
            for (key, value) in object.iter_mut() {
                if key.len() > MAX_NAME {
                    return Err(too_long("name", key));
                }
                match value {
                    Value::String(target) if key == "$ref" && target.len() > MAX_NAME => {
                        return Err(too_long("$ref", target));
                    }
                    Value::Array(kinds) if key == "type" => {
                        let all = std::mem::take(kinds);
                        all.into_iter().for_each(|kind| {
                            if !kinds.contains(&kind) {
                                kinds.push(kind)
                            }
                        });
                    }
                    value => limit(path, value)?,
                }
            }
            Ok(())
        }
        Value::Array(values) => values.iter_mut().try_for_each(|value| limit(path, value)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_have_a_length_and_types_are_said_once() {
        let mut schema =
            json!({"type": ["object", "null", "object"], "properties": {"a": {"type": ["string", "string"]}}});
        limit("s", &mut schema).unwrap();
        assert_eq!(schema, json!({"type": ["object", "null"], "properties": {"a": {"type": ["string"]}}}));
        for mut bad in [json!({"properties": {"_".repeat(300): {}}}), json!({"items": {"$ref": "é".repeat(200)}})] {
            assert_eq!(limit("s", &mut bad).unwrap_err().param(), Some("s"));
        }
    }
}
