//! Chat templates: the model's own Jinja text over a list of messages.

use anyhow::{Context as _, Result};
use minijinja::{
    Environment, Error, ErrorKind, Value, context,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde},
};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io;

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// What is said.
    pub content: String,
}

impl Message {
    /// What the user says.
    pub fn user(content: impl Into<String>) -> Self {
        let content = content.into();
        let role = "user";
        Self { role, content }
    }

    /// What the model says.
    pub fn assistant(content: impl Into<String>) -> Self {
        let content = content.into();
        let role = "assistant";
        Self { role, content }
    }

    /// What the model is told first.
    pub fn system(content: impl Into<String>) -> Self {
        let content = content.into();
        let role = "system";
        Self { role, content }
    }
}

const NAME: &str = "chat_template";

/// A chat template.
///
/// Set up as published templates expect: blocks take their line's end and the spaces
/// before them, Python's methods of text and lists are there, `tojson` writes what
/// Python writes, and `raise_exception` is an error. There is no `strftime_now`:
/// the same chat makes the same prompt on any day.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    /// The file that it stands in, for errors.
    source: String,
    bos_token: String,
    eos_token: String,
}

impl Template {
    /// Compiles a template of `source`, a file; the tokens are what it knows by
    /// `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// In which file and where its text is wrong, and how.
    pub fn new(source: &str, text: &str, [bos_token, eos_token]: [&str; 2]) -> Result<Self> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build()?);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(NAME, text.to_owned())
            .with_context(|| of(source))?;
        Ok(Self {
            environment,
            source: source.to_owned(),
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
        })
    }

    /// The text of a chat; `reply` ends it where the model's reply begins.
    ///
    /// # Errors
    /// What the template says of messages that it refuses.
    pub fn render(&self, messages: &[Message], reply: bool) -> Result<String> {
        let template = self.environment.get_template(NAME)?;
        let text = template.render(context! {
            messages => Serde(messages),
            add_generation_prompt => reply,
            bos_token => &*self.bos_token,
            eos_token => &*self.eos_token,
            tools => Value::from(()),
            documents => Value::from(()),
        });
        text.with_context(|| of(&self.source))
    }
}

fn of(source: &str) -> String {
    format!("{source}: the chat template")
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// JSON with Python's spaces, not escaped for HTML.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Text is never escaped, sorted or separated otherwise.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let result = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
        Some(indent) => {
            let indent = vec![b' '; indent.min(16)];
            let pretty = PrettyFormatter::with_indent(&indent);
            value.serialize(&mut Serializer::with_formatter(&mut bytes, pretty))
        }
    };
    let wrong = |error: String| Error::new(ErrorKind::BadSerialization, error);
    result.map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    Ok(Value::from_safe_string(text))
}

/// `, ` between elements and `: ` behind keys.
struct Spaced;

impl Spaced {
    fn separate<W: ?Sized + io::Write>(writer: &mut W, first: bool) -> io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }
}

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        Self::separate(w, first)
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        Self::separate(w, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str, messages: &[Message]) -> Result<String> {
        Template::new("a.jinja", text, ["<s>", "</s>"])?.render(messages, true)
    }

    #[test]
    fn blocks_take_their_lines() {
        let text = "{{ bos_token }}\n  {% for m in messages %}\n<{{ m.role }}>\n  {% endfor %}\n\
                    {% if add_generation_prompt %}!{% endif %}";
        let messages = [Message::system("x"), Message::user("y")];
        let found = render(text, &messages).expect("a template");
        assert_eq!(
            found, "<s>\n<system>\n<user>\n!",
            "as transformers renders it"
        );
    }

    #[test]
    fn python_is_understood() {
        let text = "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}\
                    {% if m['content'].strip().startswith('a') %}{% set ns.n = ns.n + 1 %}\
                    {% endif %}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}\
                    {{ ns.n }} {{ messages[0]['content'].split(' ')[-1] }} {{ tools is none }}";
        let messages = ["a b", " a", "c"].map(Message::user);
        let found = render(text, &messages).expect("a template");
        assert_eq!(
            found, "1 b True",
            "methods, slices, namespaces, loop controls"
        );
    }

    #[test]
    fn json_is_pythons() {
        let messages = [Message::user("<é>")];
        let found = render("{{ messages | tojson }}", &messages).expect("a template");
        let expected = r#"[{"role": "user", "content": "<é>"}]"#;
        assert_eq!(found, expected, "spaces, and nothing escaped");
        let found = render("{{ [1] | tojson(indent=4) }}", &[]).expect("a template");
        assert_eq!(found, "[\n    1\n]", "indented");
    }

    #[test]
    fn what_a_template_refuses_is_said() {
        let text = "{{ raise_exception('roles must alternate') }}";
        let error = format!("{:#}", render(text, &[]).expect_err("refused"));
        assert!(error.contains("roles must alternate"), "{error}");
        assert!(error.starts_with("a.jinja: the chat template"), "{error}");
        let error = format!("{:#}", render("{% for %}", &[]).expect_err("wrong"));
        assert!(error.contains("chat_template:1"), "{error}");
        assert!(error.starts_with("a.jinja: the chat template"), "{error}");
        let text = "{% if strftime_now is defined %}now{% else %}26 Jul 2024{% endif %}";
        let found = render(text, &[]).expect("a template");
        assert_eq!(found, "26 Jul 2024", "the same on any day");
    }
}
