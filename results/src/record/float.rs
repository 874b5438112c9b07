//! JSON has no NaN and no infinity, but a broken kernel has both, and a check
//! must be able to say so: finite values are numbers, the rest are strings.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() {
        serializer.serialize_f64(*value)
    } else if value.is_nan() {
        serializer.serialize_str("NaN")
    } else if *value > 0.0 {
        serializer.serialize_str("inf")
    } else {
        serializer.serialize_str("-inf")
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Name(String),
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match Written::deserialize(deserializer)? {
        Written::Number(value) => Ok(value),
        Written::Name(name) => match name.as_str() {
            "NaN" => Ok(f64::NAN),
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            other => Err(D::Error::custom(format!(
                "expected a number, \"NaN\", \"inf\" or \"-inf\", found \"{other}\""
            ))),
        },
    }
}
