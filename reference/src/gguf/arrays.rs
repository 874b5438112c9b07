//! Arrays of the metadata, which stay in the file until they are asked for: the
//! tokens, merges, scores and kinds of a tokenizer.

use super::{Gguf, GgufError, Kind, Reader, Value};

/// Bytes in front of an array's elements: their type and their number.
const ARRAY_HEADER: usize = 4 + 8;

impl Gguf {
    /// An array of text.
    ///
    /// # Errors
    /// Missing, or of another type.
    pub fn strings(&self, key: &str) -> Result<Vec<String>, GgufError> {
        self.elements(key, "an array of text", |value| {
            if let Value::String(text) = value {
                Ok(text)
            } else {
                Err(value)
            }
        })
    }

    /// An array of integers.
    ///
    /// # Errors
    /// Missing, or of another type.
    pub fn integers(&self, key: &str) -> Result<Vec<i64>, GgufError> {
        self.elements(key, "an array of integers", |value| {
            let number = if let Value::Unsigned(number) = value {
                i64::try_from(number).ok()
            } else if let Value::Signed(number) = value {
                Some(number)
            } else {
                None
            };
            number.ok_or(value)
        })
    }

    /// An array of floating-point numbers.
    ///
    /// # Errors
    /// Missing, or of another type.
    pub fn floats(&self, key: &str) -> Result<Vec<f64>, GgufError> {
        self.elements(key, "an array of numbers", |value| {
            if let Value::Float(number) = value {
                Ok(number)
            } else {
                Err(value)
            }
        })
    }

    fn elements<T>(
        &self,
        key: &str,
        expected: &str,
        take: impl Fn(Value) -> Result<T, Value>,
    ) -> Result<Vec<T>, GgufError> {
        let value = self.value(key)?;
        let Value::Array { len, bytes } = value else {
            return Err(self.wrong(key, expected, value));
        };
        let field = format!("metadata {key}");
        let mut reader = Reader {
            file: self.file.clone(),
            bytes: &self.bytes,
            size: self.bytes.len() as u64,
            at: bytes.start - ARRAY_HEADER,
        };
        let kind = reader.kind(&field)?;
        reader.at = bytes.start;
        if matches!(kind, Kind::Array) {
            return Err(self.wrong(key, expected, value));
        }
        let mut elements = Vec::new();
        for _ in 0..*len {
            let element = reader.value(kind, &field, 0)?;
            let element = take(element).map_err(|other| GgufError::Field {
                file: self.file.clone(),
                field: field.clone(),
                expected: expected.into(),
                found: format!("an array with {other:?}"),
            })?;
            elements.push(element);
        }
        Ok(elements)
    }
}
