//! Which JSON schemas can be enforced. The converter to a grammar is llama.cpp's, and it passes over what it does not know;
//! a client that asked for a constraint must get it, or a 400 that names the keyword.

use serde_json::{Map, Value, json};

use super::{combine::combine, limits::limit, pattern};
use crate::{engine::Grammar, llama, server::error::ApiError};

/// Keywords that say nothing about a value, or that the converter enforces.
const KNOWN: &[&str] = &[
    "$comment",
    "$defs",
    "$id",
    "$ref",
    "$schema",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "enum",
    "example",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "name",
    "nullable",
    "oneOf",
    "pattern",
    "prefixItems",
    "properties",
    "propertyOrdering",
    "readOnly",
    "required",
    "strict",
    "title",
    "type",
    "writeOnly",
];

/// Keywords that constrain a value and that no grammar here can express.
const UNENFORCEABLE: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "maxProperties",
    "minContains",
    "minProperties",
    "multipleOf",
    "not",
    "patternProperties",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Of several of these in one schema the converter reads the first and passes over the rest.
const EXCLUSIVE: &[&str] = &["$ref", "oneOf", "anyOf", "allOf", "const", "enum", "properties"];

const BOUNDS: &[&str] = &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// What says something of a value and is passed over beside a keyword that says it all.
const CONSTRAINTS: &[&str] = &[
    "additionalProperties",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "prefixItems",
];

/// Repetitions in a grammar end here (llama.cpp's limit). A longer maximum is as good as none for text that has to fit a
/// context; a longer minimum cannot be kept.
const MAX_REPETITION: u64 = 2000;

/// The grammar of optional properties grows with the square of their number.
const MAX_PROPERTIES: usize = 400;

/// Characters of a client's text in a message.
const MAX_SHOWN: usize = 200;

/// How many schemas one may be made of.
const MAX_SCHEMAS: usize = 20_000;

/// How deep schemas may nest.
const MAX_DEPTH: usize = 64;

/// The schema as the converter is to get it: `{}` asks for an object, patterns are anchored.
///
/// # Errors
/// The keyword that cannot be enforced, by its path.
pub fn check_schema(path: &str, mut schema: Value) -> Result<Value, ApiError> {
    match &mut schema {
        Value::Object(object) if object.is_empty() => schema = json!({"type": "object"}),
        Value::Object(_) => {
            limit(path, &mut schema)?;
            let root = schema.clone();
            Walk { root: &root, n_left: MAX_SCHEMAS }.schema(path, &mut schema, 0)?;
        }
        other => {
            let kind = crate::server::fields::kind_of(other);
            return Err(ApiError::field(path, format_args!("expected a JSON schema (an object), got {kind}")));
        }
    }
    schema_grammar(&schema, path).map(|_| schema)
}

/// A tool's parameters as the converter is to get them, which passes over what it does not know: a call is promised to be one,
/// not to keep every word of its schema. What would make it no JSON is taken out.
pub fn tolerated(parameters: &Value) -> Value {
    match parameters {
        Value::Object(object) => {
            let keep = |(key, value): (&String, &Value)| match value {
                Value::String(pattern) if key == "pattern" => {
                    Some((key.clone(), enforceable("pattern", pattern).ok()?.into()))
                }
                value => Some((key.clone(), tolerated(value))),
            };
            Value::Object(object.iter().filter_map(keep).collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(tolerated).collect()),
        other => other.clone(),
    }
}

/// The grammar of a schema; an error is told of `field`.
pub fn schema_grammar(schema: &Value, field: &str) -> Result<Grammar, ApiError> {
    let gbnf = llama::schema_to_grammar(&schema.to_string())
        .map_err(|error| ApiError::field(field, error.to_string().replace('\n', " ")))?;
    Ok(Grammar { gbnf: with_good_names(&gbnf), ..Grammar::default() })
}

/// The converter's rules for names that are none of the listed ones allow what JSON text has only escaped.
fn with_good_names(gbnf: &str) -> String {
    let rule = |line: &str| match line.split_once(" ::= ") {
        Some((name, _)) if name.ends_with("additional-k") => line.replace("[^\"", r#"[^"\\\x00-\x1F\x7F"#),
        _ => line.to_owned(),
    };
    gbnf.lines().map(rule).collect::<Vec<_>>().join("\n")
}

struct Walk<'a> {
    root: &'a Value,
    /// Schemas that may still be looked at: those that are put in the place of others are looked at each time.
    n_left: usize,
}

impl Walk<'_> {
    fn schema(&mut self, path: &str, schema: &mut Value, depth: usize) -> Result<(), ApiError> {
        let refuse = |what: std::fmt::Arguments<'_>| {
            let shown: String = path.chars().take(MAX_SHOWN).collect();
            Err(ApiError::field(shown, what))
        };
        if depth > MAX_DEPTH {
            return refuse(format_args!("the schema is nested deeper than {MAX_DEPTH} levels"));
        }
        self.n_left = self.n_left.saturating_sub(1);
        if self.n_left == 0 {
            return refuse(format_args!("the schema stands for more than {MAX_SCHEMAS} schemas"));
        }
        // Anything is welcome.
        if *schema == Value::Bool(true) {
            *schema = json!({});
        }
        let Value::Object(object) = schema else { return Ok(()) };
        combine(self.root, path, object)?;
        refuse_unenforceable(path, object)?;
        bounds(path, object)?;
        repetitions(path, object)?;
        if let Some(Value::String(pattern)) = object.get("pattern") {
            let enforceable = enforceable(&format!("{path}.pattern"), pattern)?;
            object.insert("pattern".into(), enforceable.into());
        }
        self.children(path, object, depth)
    }

    fn children(&mut self, path: &str, object: &mut Map<String, Value>, depth: usize) -> Result<(), ApiError> {
        for key in ["properties", "$defs", "definitions"] {
            if let Some(Value::Object(schemas)) = object.get_mut(key) {
                schemas
                    .iter_mut()
                    .try_for_each(|(name, schema)| self.schema(&format!("{path}.{key}.{name}"), schema, depth + 1))?;
            }
        }
        for key in ["oneOf", "anyOf", "allOf", "prefixItems", "items", "additionalProperties"] {
            match object.get_mut(key) {
                Some(Value::Array(schemas)) => schemas.iter_mut().enumerate().try_for_each(|(index, schema)| {
                    self.schema(&format!("{path}.{key}[{index}]"), schema, depth + 1)
                })?,
                Some(schema @ Value::Object(_)) => self.schema(&format!("{path}.{key}"), schema, depth + 1)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn refuse_unenforceable(path: &str, schema: &Map<String, Value>) -> Result<(), ApiError> {
    let refuse = |key: &str, why: &str| Err(ApiError::field(format!("{path}.{key}"), why));
    for (key, value) in schema {
        let asks_nothing = matches!(value, Value::Bool(false)) && key == "uniqueItems"
            || matches!(value, Value::Bool(true)) && key.starts_with("unevaluated");
        if UNENFORCEABLE.contains(&key.as_str()) && !asks_nothing {
            return refuse(key, "this keyword of JSON Schema cannot be enforced; leave it out");
        }
        // Anything else is an annotation: JSON Schema has validators ignore what they do not know.
        debug_assert!(!(KNOWN.contains(&key.as_str()) && UNENFORCEABLE.contains(&key.as_str())));
    }
    let mut exclusive = EXCLUSIVE.iter().filter(|key| schema.contains_key(**key));
    if let (Some(first), Some(second)) = (exclusive.next(), exclusive.next())
        && !(*first == "const" && *second == "enum")
    {
        return refuse(second, &format!("cannot be enforced beside `{first}`; combine them in one"));
    }
    refuse_passed_over(path, schema)?;
    let is_number = schema
        .get("type")
        .is_some_and(|kind| kind == "number" || kind.as_array().is_some_and(|kinds| kinds.contains(&json!("number"))));
    for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
        if is_number && schema.contains_key(key) {
            return refuse(key, "a bound of a `number` cannot be enforced (that of an `integer` can); leave it out");
        }
    }
    Ok(())
}

/// Constraints that the converter does not look at: beside a keyword that says it all, and without the type that they are for.
fn refuse_passed_over(path: &str, schema: &Map<String, Value>) -> Result<(), ApiError> {
    let refuse = |key: &str, why: &str| Err(ApiError::field(format!("{path}.{key}"), why));
    let has = |key: &&&str| schema.contains_key(**key);
    if let Some(whole) = ["$ref", "oneOf", "anyOf", "enum", "const"].iter().find(has)
        && let Some(key) = CONSTRAINTS.iter().find(has)
    {
        return refuse(key, &format!("cannot be enforced beside `{whole}`; put it there, or leave it out"));
    }
    let is_typed = |part: &Value| {
        ["type", "$ref", "enum", "const", "anyOf", "oneOf", "properties"].iter().any(|key| part.get(key).is_some())
    };
    for key in ["oneOf", "anyOf"] {
        let parts = schema.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if schema.contains_key("type") && !parts.iter().all(is_typed) {
            return refuse(key, "an alternative has no `type` of its own, and that beside it is passed over");
        }
    }
    for (keys, needed) in [(BOUNDS, &["type"][..]), (&["minItems", "maxItems"], &["type", "items", "prefixItems"])] {
        if let Some(key) = keys.iter().find(has)
            && !needed.iter().any(|key| schema.contains_key(*key))
        {
            return refuse(key, "needs a `type` beside it");
        }
    }
    for (one, other) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        if schema.contains_key(other) && (schema.contains_key(one) || !schema[other].is_number()) {
            return refuse(
                other,
                "expected a number, and none of both `minimum` and `exclusiveMinimum` (or the maxima)",
            );
        }
    }
    Ok(())
}

/// A minimum above its maximum, which nothing fits, and bounds that the converter cannot hold.
fn bounds(path: &str, schema: &Map<String, Value>) -> Result<(), ApiError> {
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    for (min, max) in [("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum")] {
        if let (Some(low), Some(high)) = (number(min), number(max))
            && low > high
        {
            return Err(ApiError::field(format!("{path}.{min}"), format_args!("is above `{max}`: nothing fits both")));
        }
    }
    if schema.get("properties").and_then(Value::as_object).is_some_and(|all| all.len() > MAX_PROPERTIES) {
        let problem = format_args!("has more than {MAX_PROPERTIES} entries, which takes too long to enforce");
        return Err(ApiError::field(format!("{path}.properties"), problem));
    }
    for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
        if number(key).is_some_and(|bound| bound.abs() > 9e18) {
            return Err(ApiError::field(format!("{path}.{key}"), "is beyond 64 bits and cannot be enforced"));
        }
    }
    Ok(())
}

fn repetitions(path: &str, schema: &mut Map<String, Value>) -> Result<(), ApiError> {
    for (min, max) in [("minLength", "maxLength"), ("minItems", "maxItems")] {
        let beyond = |key: &str| schema.get(key).and_then(Value::as_u64).is_some_and(|n| n >= MAX_REPETITION);
        if beyond(min) {
            let problem = format_args!("cannot be enforced from {MAX_REPETITION} on");
            return Err(ApiError::field(format!("{path}.{min}"), problem));
        }
        if beyond(max) {
            schema.remove(max);
        }
    }
    Ok(())
}

/// A pattern in the converter's terms. Refused when the converter would pass over it.
fn enforceable(path: &str, pattern: &str) -> Result<String, ApiError> {
    let refuse = |why: String| {
        let shown: String = pattern.chars().take(MAX_SHOWN).collect();
        Err(ApiError::field(path, format_args!("the pattern {shown:?} cannot be enforced: it {why}")))
    };
    let pattern = match pattern::rewrite(pattern) {
        Ok(pattern) => pattern,
        Err(why) => return refuse(why),
    };
    let schema = json!({"type": "string", "pattern": pattern});
    match llama::schema_to_grammar(&schema.to_string()) {
        // What the converter does when it passes over a pattern.
        Ok(grammar) if grammar.lines().any(|line| line == "root ::= string") => {
            refuse("has syntax that is not supported".to_owned())
        }
        Ok(_) => Ok(pattern),
        Err(error) => refuse(format!("is not valid ({})", error.to_string().replace('\n', " "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(schema: Value) -> Option<String> {
        let error = check_schema("s", schema).err()?;
        serde_json::to_value(error.body()).unwrap()["error"]["param"].as_str().map(str::to_owned)
    }

    #[test]
    fn what_can_be_enforced_passes() {
        for schema in [
            json!({}),
            json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
                   "required": ["a"], "additionalProperties": false}),
            json!({"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1, "uniqueItems": false,
                   "$defs": {"x": {"enum": ["a", 1, null]}}}),
            json!({"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}], "title": "t", "x-mine": 1}),
            json!({"type": "string", "pattern": "^\\d{3}-[\\w.]+$"}),
            json!({"type": "string", "pattern": "ab|cd"}),
            json!({"type": "string", "maxLength": 100_000}),
            json!({"type": "object", "properties": {"a": true, "b": {"prefixItems": [{"type": "null"}], "items": false}}}),
            json!({"type": "string", "format": "uuid", "pattern": "^[0-9a-f-]{36}$"}),
            json!({"type": "object", "properties": {"x": {"type": "null"}}, "allOf": [{"$ref": "#/$defs/b"}],
                   "$defs": {"b": {"type": "object", "properties": {"y": {"type": "null"}}}}}),
            json!({"type": "string", "nullable": true, "enum": ["a", null]}),
        ] {
            assert_eq!(refused(schema.clone()), None, "{schema}");
        }
    }

    #[test]
    fn a_tools_patterns_are_rewritten_or_left_out() {
        let parameters = json!({"properties": {
            "pattern": {"type": "string", "pattern": "^[^a]$"}, "x": {"pattern": "^\"$", "enum": ["pattern"]},
        }});
        let tolerated = tolerated(&parameters);
        assert!(tolerated["properties"]["pattern"]["pattern"].as_str().unwrap().starts_with("^[\\x20-"), "{tolerated}");
        assert_eq!(tolerated["properties"]["x"], json!({"enum": ["pattern"]}));
    }

    /// A few kilobytes that stand for 2^30 schemas.
    fn chain_of_all_of() -> Value {
        let part = |i: usize| json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"properties": {}}]});
        let each = (0..30).map(|i| (format!("d{i}"), json!({"properties": {"l": part(i), "r": part(i)}})));
        let mut defs: Map<String, Value> = each.collect();
        defs.insert("d30".into(), json!({"properties": {}}));
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    }

    #[test]
    fn what_cannot_is_named() {
        for (schema, path) in [
            (json!([]), "s"),
            (json!({"not": {}}), "s.not"),
            (
                json!({"type": "object", "properties": {"a": {"type": "number", "minimum": 0}}}),
                "s.properties.a.minimum",
            ),
            (json!({"items": {"type": "integer", "multipleOf": 5}, "type": "array"}), "s.items.multipleOf"),
            (json!({"anyOf": [{"type": "null"}, {"uniqueItems": true}]}), "s.anyOf[1].uniqueItems"),
            (json!({"anyOf": [{}], "allOf": [{"const": 1}]}), "s.const"),
            (json!({"type": "string", "pattern": "^(?=a)b$"}), "s.pattern"),
            (json!({"type": "string", "pattern": "^(a$"}), "s.pattern"),
            (json!({"type": "string", "minLength": 5000}), "s.minLength"),
            (json!({"type": "string", "minLength": 5, "maxLength": 2}), "s.minLength"),
            (json!({"type": "array", "minItems": 5, "maxItems": 1}), "s.minItems"),
            (json!({"type": "integer", "minimum": 10, "maximum": 1}), "s.minimum"),
            (json!({"type": "integer", "minimum": 1e40}), "s.minimum"),
            (json!({"$ref": "#/$defs/none"}), "s"),
            (chain_of_all_of(), "s.$defs.d0.properties"),
            (json!({"type": "strange"}), "s"),
            (
                json!({"type": "array", "items": {"$ref": "#/$defs/x", "maxLength": 5}, "$defs": {"x": {}}}),
                "s.items.maxLength",
            ),
            (json!({"type": "integer", "anyOf": [{"minimum": 1}, {"maximum": 0}]}), "s.anyOf"),
            (json!({"minimum": 1}), "s.minimum"),
            (json!({"minItems": 1}), "s.minItems"),
            (json!({"type": "integer", "minimum": 1, "exclusiveMinimum": 3}), "s.exclusiveMinimum"),
            (json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}), "s.exclusiveMinimum"),
            (json!({"enum": ["a"], "pattern": "^a$"}), "s.pattern"),
            (json!({"type": "object", "$defs": {"a_b": {}, "a-b": {}}}), "s.$defs"),
            (json!({"$ref": "#/components/x", "components": {"x": {}}}), "s.$ref"),
            (json!({"type": "string", "pattern": "^a\"b$"}), "s.pattern"),
            (json!({"type": "array", "items": {"$dynamicRef": "#x"}}), "s.items.$dynamicRef"),
            (json!({"type": "object", "properties": {"a": {"allOf": [{"not": {}}]}}}), "s.properties.a.not"),
        ] {
            let found = refused(schema.clone());
            assert!(
                found.as_deref().is_some_and(|found| found == path || path.len() > 12 && found.starts_with(path)),
                "{schema}: {found:?}"
            );
        }
    }

    #[test]
    fn names_of_additional_properties_are_json() {
        let schema =
            json!({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "null"}});
        let grammar = schema_grammar(&check_schema("s", schema).unwrap(), "s").unwrap().gbnf;
        assert!(
            grammar.contains(r#"additional-k ::= ["] ( [a] char+ | [^"\\\x00-\x1F\x7Fa] char* )? ["]"#),
            "{grammar}"
        );
    }
}
