//! The little JSON that xtask writes and reads itself, to depend on nothing.

/// `text` as a JSON string, with its quotes.
#[must_use]
pub fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            control if control < ' ' => {
                out.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// An object of members whose values are JSON already.
#[must_use]
pub fn object(members: &[(&str, String)]) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(name, value)| format!("{}:{value}", string(name)))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// An array of values that are JSON already.
#[must_use]
pub fn array(values: impl IntoIterator<Item = String>) -> String {
    let values: Vec<String> = values.into_iter().collect();
    format!("[{}]", values.join(","))
}

/// The string member `name` of the one-line object `line`, as cargo writes its
/// messages: without spaces. The first member of that name counts, at any depth.
#[must_use]
pub fn string_member(line: &str, name: &str) -> Option<String> {
    let opening = format!("{}:\"", string(name));
    let start = line.find(&opening)? + opening.len();
    let mut out = String::new();
    let mut characters = line[start..].chars();
    loop {
        match characters.next()? {
            '"' => return Some(out),
            '\\' => match characters.next()? {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'u' => {
                    let digits: String = characters.by_ref().take(4).collect();
                    out.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                }
                plain => out.push(plain),
            },
            plain => out.push(plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_survives_both_ways() {
        for text in ["", "plain", "C:\\dir\\zerotvm.exe", "a \"b\"\n\u{1}é"] {
            let line = object(&[("reason", string("artifact")), ("executable", string(text))]);
            assert_eq!(string_member(&line, "executable").as_deref(), Some(text));
            let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(read["executable"], text);
        }
    }

    #[test]
    fn a_missing_or_cut_member_is_none() {
        assert_eq!(string_member(r#"{"executable":null}"#, "executable"), None);
        assert_eq!(string_member(r#"{"executable":"half"#, "executable"), None);
        assert_eq!(string_member(r#"{"executable":"\u12"#, "executable"), None);
    }

    #[test]
    fn arrays_and_objects() {
        assert_eq!(array([]), "[]");
        assert_eq!(
            array([string("a"), object(&[("n", "1".into())])]),
            r#"["a",{"n":1}]"#
        );
    }
}
