//! Keywords of one schema that the converter would read one of, and pass over the other: put together where that is possible,
//! refused where it is not.

use serde_json::{Map, Value, json};

use crate::server::error::ApiError;

type Object = Map<String, Value>;

/// How many `allOf` may stand one in the other.
const MAX_NESTED: usize = 8;

/// Keywords below which schemas are looked at; others are not, and nothing may refer to what stands there.
const LOOKED_AT: &[&str] =
    &["$defs", "additionalProperties", "allOf", "anyOf", "definitions", "items", "oneOf", "prefixItems", "properties"];

/// Says nothing about a value.
const ANNOTATIONS: &[&str] =
    &["$comment", "default", "deprecated", "description", "example", "examples", "readOnly", "title", "writeOnly"];

/// Formats that the converter enforces; all others are annotations.
const FORMATS: &[&str] = &["date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5"];

/// Rewrites one schema, whose `$ref`s are found in `root`.
///
/// # Errors
/// The keyword that could not be kept, by its path.
pub fn combine(root: &Value, path: &str, schema: &mut Object) -> Result<(), ApiError> {
    // One in another, as generators nest them.
    for _ in 0..MAX_NESTED {
        merge_all_of(root, path, schema)?;
    }
    if schema.contains_key("allOf") {
        return refuse(path, "allOf", format_args!("is nested more than {MAX_NESTED} times"));
    }
    check_references(path, schema)?;
    check_names(path, schema)?;
    check_tuple(path, schema)?;
    check_text(path, schema)?;
    check_values(path, schema)
}

fn refuse<T>(path: &str, key: &str, why: impl std::fmt::Display) -> Result<T, ApiError> {
    Err(ApiError::field(format!("{path}.{key}"), why))
}

/// One schema in `allOf` is that schema; several objects are one object.
fn merge_all_of(root: &Value, path: &str, schema: &mut Object) -> Result<(), ApiError> {
    let Some(parts) = schema.get("allOf") else { return Ok(()) };
    let parts = match parts.as_array().map(Vec::as_slice) {
        Some([]) | None => return refuse(path, "allOf", "expected an array of schemas"),
        Some([one]) if schema.contains_key("properties") => vec![resolved(root, one)],
        Some([one]) => vec![one.clone()],
        Some(several) => several.iter().map(|part| resolved(root, part)).collect(),
    };
    let is_one = parts.len() == 1;
    schema.remove("allOf");
    for part in parts {
        let Value::Object(part) = part else {
            return refuse(path, "allOf", "can be enforced for schemas that are objects only");
        };
        if !is_one && !is_object(&part) {
            return refuse(path, "allOf", "can be enforced for one schema, or for objects with `properties`");
        }
        for (key, value) in part {
            merge(path, schema, key, value)?;
        }
    }
    Ok(())
}

/// Nothing but an object that leaves room for the properties of others.
fn is_object(part: &Object) -> bool {
    part.get("properties").is_some_and(Value::is_object)
        && part.get("type").is_none_or(|kind| kind == "object")
        && part.get("additionalProperties").is_none_or(|more| more == &json!(true))
}

/// What a local `$ref` stands for; what cannot be found, or says more, is left for others to name.
fn resolved(root: &Value, part: &Value) -> Value {
    let says_more = |part: &Object| part.keys().any(|key| key != "$ref" && !ANNOTATIONS.contains(&key.as_str()));
    if part.as_object().is_some_and(says_more) {
        return part.clone();
    }
    let target = part["$ref"].as_str().and_then(|name| root.pointer(name.strip_prefix('#')?));
    target.unwrap_or(part).clone()
}

fn merge(path: &str, schema: &mut Object, key: String, value: Value) -> Result<(), ApiError> {
    match schema.get_mut(&key) {
        None => {
            schema.insert(key, value);
        }
        Some(_) if ANNOTATIONS.contains(&key.as_str()) => {}
        Some(own) if *own == value => {}
        Some(Value::Array(own)) if key == "required" => {
            for name in value.as_array().into_iter().flatten() {
                if !own.contains(name) {
                    own.push(name.clone());
                }
            }
        }
        Some(Value::Object(own)) if matches!(key.as_str(), "properties" | "$defs" | "definitions") => {
            let Value::Object(value) = value else { return refuse(path, &key, "expected an object") };
            for (name, property) in value {
                match own.get(&name) {
                    Some(other) if *other != property => {
                        return refuse(path, "allOf", format_args!("describes `{name}` more than once"));
                    }
                    _ => _ = own.insert(name, property),
                }
            }
        }
        Some(_) => return refuse(path, "allOf", format_args!("says `{key}` more than once")),
    }
    Ok(())
}

/// Definitions are looked up by their names with all but letters and digits made one.
fn check_references(path: &str, schema: &Object) -> Result<(), ApiError> {
    if let Some(Value::String(target)) = schema.get("$ref") {
        let first = target.strip_prefix("#/").and_then(|target| target.split('/').next());
        if !first.is_some_and(|first| LOOKED_AT.contains(&first)) {
            return refuse(path, "$ref", "refers to what is no part of this schema; put it under `$defs`");
        }
    }
    for key in ["$defs", "definitions"] {
        let names = schema.get(key).and_then(Value::as_object).into_iter().flat_map(Object::keys);
        let mut seen = std::collections::HashSet::new();
        for name in names {
            let words: Vec<&str> =
                name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
            if !seen.insert(words.join("-")) {
                return refuse(
                    path,
                    key,
                    format_args!("has another name so much like `{name}` that it is taken for it"),
                );
            }
        }
    }
    Ok(())
}

/// Names that the converter does not see, or takes for others.
fn check_names(path: &str, schema: &Object) -> Result<(), ApiError> {
    let properties = schema.get("properties").and_then(Value::as_object);
    if properties.is_some_and(|properties| properties.contains_key("")) {
        return refuse(path, "properties", "an empty name cannot be enforced");
    }
    let Some(required) = schema.get("required") else { return Ok(()) };
    let Some(names) = required.as_array() else { return refuse(path, "required", "expected an array of strings") };
    for (index, name) in names.iter().enumerate() {
        let Some(name) = name.as_str() else {
            return refuse(path, &format!("required[{index}]"), "expected a string");
        };
        if !properties.is_some_and(|properties| properties.contains_key(name)) {
            return refuse(path, &format!("required[{index}]"), format_args!("`{name}` is not among the `properties`"));
        }
    }
    Ok(())
}

/// An array has items of one kind, or these items and no others.
fn check_tuple(path: &str, schema: &mut Object) -> Result<(), ApiError> {
    let tuple = ["prefixItems", "items"].into_iter().find_map(|key| Some((key, schema.get(key)?.as_array()?)));
    let Some((key, items)) = tuple else { return Ok(()) };
    let n_items = items.len() as u64;
    if key == "prefixItems" {
        // None beyond those that are given is what the converter makes of it in any case.
        match schema.get("items") {
            None => {}
            Some(Value::Bool(false)) => _ = schema.remove("items"),
            Some(_) => return refuse(path, "items", "cannot be enforced beside `prefixItems`; leave it out"),
        }
    }
    let count = |key: &str| schema.get(key).and_then(Value::as_u64);
    for (bound, is_kept) in [
        ("minItems", count("minItems").is_none_or(|n| n <= n_items)),
        ("maxItems", count("maxItems").is_none_or(|n| n >= n_items)),
    ] {
        if !is_kept {
            return refuse(path, bound, format_args!("cannot be enforced beside `{key}`, which gives every item"));
        }
    }
    Ok(())
}

/// A text has a pattern, or a format, or a length.
fn check_text(path: &str, schema: &mut Object) -> Result<(), ApiError> {
    if schema.contains_key("pattern") {
        // An annotation where something says it exactly.
        schema.remove("format");
    }
    let format = schema.get("format").and_then(Value::as_str).filter(|format| FORMATS.contains(format));
    let forms = [
        ("pattern", schema.contains_key("pattern")),
        ("format", format.is_some()),
        ("minLength", schema.get("minLength").is_some_and(|n| n != &json!(0))),
        ("maxLength", schema.contains_key("maxLength")),
    ];
    let mut given = forms.iter().filter(|(_, given)| *given).map(|(key, _)| *key);
    match (given.next(), given.next()) {
        (Some(first), Some(second)) if first != "minLength" => {
            refuse(path, second, format_args!("cannot be enforced beside `{first}`; leave out one of them"))
        }
        _ => Ok(()),
    }
}

/// Values that are given one by one must be of the type that is given beside.
fn check_values(path: &str, schema: &Object) -> Result<(), ApiError> {
    let Some(kind) = schema.get("type") else { return Ok(()) };
    let is_of = |value: &Value, kind: &str| match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    let is_nullable = schema.get("nullable") == Some(&json!(true));
    let is_of_type = |value: &Value| match kind {
        _ if is_nullable && value.is_null() => true,
        Value::String(kind) => is_of(value, kind),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).any(|kind| is_of(value, kind)),
        _ => true,
    };
    let values = [
        ("const", schema.get("const").map(std::slice::from_ref)),
        ("enum", schema.get("enum").and_then(Value::as_array).map(Vec::as_slice)),
    ];
    for (key, values) in values {
        if let Some(value) = values.unwrap_or_default().iter().find(|value| !is_of_type(value)) {
            return refuse(path, key, format_args!("{value} is not of the `type` {kind}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined(schema: Value) -> Result<Value, String> {
        let root = schema.clone();
        let Value::Object(mut object) = schema else { panic!("no object") };
        match combine(&root, "s", &mut object) {
            Ok(()) => Ok(object.into()),
            Err(error) => Err(error.param().unwrap().to_owned()),
        }
    }

    #[test]
    fn one_schema_is_made_of_several() {
        let defs = json!({"a": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}});
        let merged = combined(json!({
            "$defs": defs, "title": "t",
            "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": {"type": "null"}}, "required": ["y"], "title": "u"}],
        }));
        let expected = json!({
            "$defs": defs, "title": "t", "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "null"}}, "required": ["x", "y"],
        });
        assert_eq!(merged.unwrap(), expected);
        assert_eq!(
            combined(json!({"allOf": [{"$ref": "#/$defs/x"}], "default": 1})).unwrap(),
            json!({"default": 1, "$ref": "#/$defs/x"})
        );
        assert_eq!(
            combined(json!({"allOf": [{"type": "string", "maxLength": 3}]})).unwrap(),
            json!({"type": "string", "maxLength": 3})
        );
    }

    #[test]
    fn what_cannot_be_put_together_is_named() {
        for (schema, path) in [
            (json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), "s.allOf"),
            (
                json!({"allOf": [{"properties": {"a": {"minimum": 5}}}, {"properties": {"a": {"maximum": 6}}}]}),
                "s.allOf",
            ),
            (json!({"allOf": [{"properties": {}, "additionalProperties": false}, {"properties": {}}]}), "s.allOf"),
            (json!({"allOf": []}), "s.allOf"),
            (json!({"type": "object", "properties": {"a": {}}, "required": ["zz"]}), "s.required[0]"),
            (json!({"type": "object", "required": ["zz"]}), "s.required[0]"),
            (json!({"type": "object", "required": "a"}), "s.required"),
            (json!({"properties": {"": {}}}), "s.properties"),
            (json!({"prefixItems": [{}, {}], "items": {"type": "string"}}), "s.items"),
            (json!({"prefixItems": [{}, {}], "maxItems": 1}), "s.maxItems"),
            (json!({"items": [{}, {}], "minItems": 3}), "s.minItems"),
            (json!({"type": "string", "pattern": "^a$", "maxLength": 3}), "s.maxLength"),
            (json!({"allOf": [{"$ref": "#/x", "required": ["a"]}, {"properties": {}}]}), "s.allOf"),
            (json!({"allOf": [{"allOf": [{"type": "string"}, {"type": "integer"}]}]}), "s.allOf"),
            (json!({"type": "string", "format": "date", "maxLength": 3}), "s.maxLength"),
            (json!({"type": "integer", "enum": ["a", 1]}), "s.enum"),
            (json!({"type": "integer", "const": 1.5}), "s.const"),
        ] {
            assert_eq!(combined(schema.clone()).unwrap_err(), path, "{schema}");
        }
    }

    #[test]
    fn what_says_the_same_passes() {
        for schema in [
            json!({"prefixItems": [{}, {}], "minItems": 2, "maxItems": 2}),
            json!({"type": "string", "minLength": 1, "maxLength": 3, "format": "email"}),
            json!({"type": "string", "pattern": "^a$", "minLength": 0}),
            json!({"type": ["integer", "null"], "enum": [1, 2.0, null]}),
            json!({"type": "object", "properties": {"a": {}}, "required": ["a"]}),
        ] {
            assert_eq!(combined(schema.clone()), Ok(schema));
        }
    }
}
