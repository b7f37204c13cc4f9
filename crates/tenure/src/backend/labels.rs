//! Labels as the tables of the SQL stores hold them: a JSON object.

use crate::Labels;

/// Labels from JSON. Rows that others wrote before us may hold numbers and the like; those are read as
/// they are written.
pub fn labels_of_json(text: &str) -> Result<Labels, serde_json::Error> {
    serde_json::from_str::<Labels>(text).or_else(|_| {
        let values: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)?;
        let text = |value: serde_json::Value| match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        Ok(values.into_iter().map(|(key, value)| (key, text(value))).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_are_no_strings_are_understood() {
        let labels = labels_of_json(r#"{"n":7,"on":true,"none":null,"s":"x"}"#).unwrap();
        let read: Vec<_> =
            labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(read, [("n", "7"), ("none", "null"), ("on", "true"), ("s", "x")]);
        assert!(labels_of_json("[1]").is_err() && labels_of_json("7").is_err());
    }
}
