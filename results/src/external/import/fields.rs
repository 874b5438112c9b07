//! A JSON object whose fields are asked by name, with errors that say what is missing.

use serde_json::{Map, Value};

/// The fields of an object. Numbers may be written as text, as CSV has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(super) fn of(value: &'a Value) -> Result<Self, String> {
        let fields = value.as_object().map(Self);
        fields.ok_or_else(|| format!("expected an object, found {value}"))
    }

    pub(super) fn names(self) -> impl Iterator<Item = &'a str> {
        self.0.keys().map(String::as_str)
    }

    /// A part that is an object, if there.
    pub(super) fn part(self, name: &str) -> Option<Self> {
        self.0.get(name)?.as_object().map(Self)
    }

    /// The objects of an array, if there.
    pub(super) fn parts(self, name: &str) -> Option<Vec<Self>> {
        let values = self.0.get(name)?.as_array()?;
        values
            .iter()
            .map(|value| value.as_object().map(Self))
            .collect()
    }

    /// The length of an array; 0 where it is none.
    pub(super) fn count(self, name: &str) -> usize {
        self.0
            .get(name)
            .and_then(Value::as_array)
            .map_or(0, Vec::len)
    }

    /// Whether a field is there and true.
    pub(super) fn is(self, name: &str) -> bool {
        self.0.get(name) == Some(&Value::Bool(true))
    }

    pub(super) fn text(self, name: &str) -> Option<String> {
        match self.0.get(name)? {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::String(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }

    /// A number, if there.
    ///
    /// # Errors
    /// The field is there and no number.
    pub(super) fn number(self, name: &str) -> Result<Option<f64>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64()),
            Some(Value::String(text)) => match text.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(format!("{name}: expected a number, found {text:?}")),
            },
            Some(other) => Err(format!("{name}: expected a number, found {other}")),
        }
    }

    /// A whole number of tokens, if there.
    pub(super) fn tokens(self, name: &str) -> Result<Option<u32>, String> {
        let Some(number) = self.number(name)? else {
            return Ok(None);
        };
        if number < 0.0 || number.fract() != 0.0 || number > f64::from(u32::MAX) {
            return Err(format!(
                "{name}: expected a number of tokens, found {number}"
            ));
        }
        Ok(Some(number as u32))
    }

    /// A number that must be there.
    pub(super) fn needs(self, name: &str, tool: &str) -> Result<f64, String> {
        self.number(name)?.ok_or_else(|| {
            let names: Vec<&str> = self.names().take(12).collect();
            format!(
                "no `{name}`, which a result of {tool} has; found {}",
                names.join(", ")
            )
        })
    }
}
