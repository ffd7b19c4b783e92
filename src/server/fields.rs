//! A typed reader of request objects. It gives errors that name the field by its path, what was expected and what came,
//! which derived deserializers do not; `null` counts as absent and unknown fields are ignored.

use serde_json::Value;

use super::{error::ApiError, extract::Object};

/// A JSON object with its place in the request.
#[derive(Clone)]
pub struct Fields<'a> {
    object: &'a Object,
    path: String,
}

impl<'a> Fields<'a> {
    /// The request itself.
    pub fn root(object: &'a Object) -> Self {
        Self { object, path: String::new() }
    }

    /// An object at `path`, or the error that it is none.
    pub fn at(path: String, value: &'a Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(object) => Ok(Self { object, path }),
            other => Err(wrong(path, "an object", other)),
        }
    }

    /// The object itself.
    pub fn to_object(&self) -> &'a Object {
        self.object
    }

    /// The path of a field of this object.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field that is there and not null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| wrong(self.path(name), expected, value))
    }

    /// `true` or `false`.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "a boolean", Value::as_bool)
    }

    /// A whole number.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.read(name, "an integer", integer)
    }

    /// A number that an `f32` can hold.
    pub fn number(&self, name: &str) -> Result<Option<f32>, ApiError> {
        let number = self.read(name, "a number", Value::as_f64)?.map(|number| number as f32);
        match number {
            Some(number) if !number.is_finite() => Err(ApiError::field(self.path(name), "is too large")),
            number => Ok(number),
        }
    }

    /// Text.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(name, "a string", Value::as_str)
    }

    /// Text that has to be there.
    pub fn required_string(&self, name: &str) -> Result<&'a str, ApiError> {
        self.string(name)?.ok_or_else(|| ApiError::field(self.path(name), "missing; expected a string"))
    }

    /// An array.
    pub fn array(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        self.read(name, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    /// An object.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.get(name).map(|value| Fields::at(self.path(name), value)).transpose()
    }
}

/// A whole number, also when written as `8.0`, which JSON Schema counts as an integer and some clients send; values
/// beyond 64 bits become the nearest that fits.
pub fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i64))
}

/// The error of a field that has the wrong type.
pub fn wrong(path: String, expected: &str, got: &Value) -> ApiError {
    ApiError::field(path, format_args!("expected {expected}, got {}", kind_of(got)))
}

/// The name of a value's type, with its article.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
