//! A page as its parts, written as Markdown or as HTML: the same words and numbers in
//! both.

use std::path::PathBuf;

use crate::svg::{Svg, escaped};
use crate::text::{cell, head, row};

/// The folder of the pictures, in the folder of reports.
pub(crate) const PICTURES: &str = "bench";

/// A part of a page. Texts are Markdown with code, bold and links alone.
#[derive(Debug)]
pub(crate) enum Part {
    Heading(usize, String),
    Text(String),
    List(Vec<String>),
    Table {
        columns: Vec<&'static str>,
        /// The first column of numbers.
        right: usize,
        rows: Vec<Vec<String>>,
    },
    Picture(Picture),
}

/// A picture of a page.
#[derive(Debug)]
pub(crate) struct Picture {
    /// Its file's name.
    pub(crate) file: String,
    /// What it shows.
    pub(crate) alt: String,
    /// How it is read.
    pub(crate) caption: String,
    pub(crate) svg: Svg,
}

/// A page.
#[derive(Debug)]
pub(crate) struct Doc {
    /// Its file's name.
    pub(crate) file: &'static str,
    pub(crate) parts: Vec<Part>,
}

impl Doc {
    pub(crate) fn new(file: &'static str, title: &str) -> Self {
        Self {
            file,
            parts: vec![Part::Heading(1, title.to_owned())],
        }
    }

    pub(crate) fn heading(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Heading(2, text.into()));
    }

    pub(crate) fn below(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Heading(3, text.into()));
    }

    pub(crate) fn text(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Text(text.into()));
    }

    pub(crate) fn table(&mut self, columns: &[&'static str], right: usize, rows: Vec<Vec<String>>) {
        self.parts.push(Part::Table {
            columns: columns.to_vec(),
            right,
            rows,
        });
    }

    pub(crate) fn picture(&mut self, picture: Option<Picture>) {
        self.parts.extend(picture.map(Part::Picture));
    }

    /// The page and its pictures by path.
    pub(crate) fn files(&self) -> Vec<(PathBuf, String)> {
        let mut files = vec![(PathBuf::from(self.file), self.markdown())];
        for part in &self.parts {
            if let Part::Picture(picture) = part {
                let path = PathBuf::from(PICTURES).join(&picture.file);
                files.push((path, picture.svg.file()));
            }
        }
        files
    }

    fn markdown(&self) -> String {
        let parts: Vec<String> = (self.parts.iter())
            .map(|part| match part {
                Part::Heading(level, text) => format!("{} {text}\n", "#".repeat(*level)),
                Part::Text(text) => format!("{text}\n"),
                Part::List(items) => items.iter().map(|item| format!("- {item}\n")).collect(),
                Part::Table {
                    columns,
                    right,
                    rows,
                } => {
                    let rows: String = (rows.iter())
                        .map(|cells| row(&cells.iter().map(|text| cell(text)).collect::<Vec<_>>()))
                        .collect();
                    head(columns, *right) + &rows
                }
                Part::Picture(picture) => format!(
                    "![{}]({PICTURES}/{})\n\n{}\n",
                    picture.alt, picture.file, picture.caption
                ),
            })
            .collect();
        parts.join("\n")
    }

    /// The page as a section of an HTML page, its pictures in it.
    pub(crate) fn html(&self) -> String {
        let mut out = format!("<section id=\"{}\">\n", self.file.trim_end_matches(".md"));
        for part in &self.parts {
            out.push_str(&match part {
                Part::Heading(level, text) => {
                    format!("<h{level}>{}</h{level}>\n", inline(text))
                }
                Part::Text(text) => format!("<p>{}</p>\n", inline(text)),
                Part::List(items) => {
                    let items: String = (items.iter())
                        .map(|item| format!("<li>{}</li>\n", inline(item)))
                        .collect();
                    format!("<ul>\n{items}</ul>\n")
                }
                Part::Table {
                    columns,
                    right,
                    rows,
                } => {
                    let line = |cells: Vec<String>, name: &str| {
                        let cells: String = (cells.iter().enumerate())
                            .map(|(at, text)| {
                                let class = if at < *right { "" } else { " class=\"n\"" };
                                format!("<{name}{class}>{text}</{name}>")
                            })
                            .collect();
                        format!("<tr>{cells}</tr>\n")
                    };
                    let head = line(columns.iter().map(|name| inline(name)).collect(), "th");
                    let rows: String = (rows.iter())
                        .map(|cells| line(cells.iter().map(|text| inline(text)).collect(), "td"))
                        .collect();
                    format!(
                        "<div class=\"table\"><table>\n<thead>{head}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
                    )
                }
                Part::Picture(picture) => format!(
                    "<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n",
                    picture.svg.inline(),
                    inline(&picture.caption)
                ),
            });
        }
        out + "</section>\n"
    }
}

/// Code, bold and links as HTML.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        out.push_str(&escaped(&rest[..at]));
        let found = &rest[at..];
        let taken = between(found, "`", "`")
            .map(|(inside, rest)| (format!("<code>{}</code>", escaped(inside)), rest))
            .or_else(|| {
                let (inside, rest) = between(found, "**", "**")?;
                Some((format!("<strong>{}</strong>", inline(inside)), rest))
            })
            .or_else(|| {
                let (inside, rest) = between(found, "[", "](")?;
                let (link, rest) = rest.split_once(')')?;
                let link = format!("<a href=\"{}\">{}</a>", escaped(link), inline(inside));
                Some((link, rest))
            });
        if let Some((html, after)) = taken {
            out.push_str(&html);
            rest = after;
        } else {
            out.push_str(&escaped(&found[..1]));
            rest = &found[1..];
        }
    }
    out + &escaped(rest)
}

/// What stands between two marks at the start of a text, and what follows.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.strip_prefix(open)?.split_once(close)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        let mut doc = Doc::new("X.md", "A < B");
        doc.text("**bold** `a<b` [link](x/y.md) 2 * 3");
        doc.table(&["a", "b"], 1, vec![vec!["x|y".into(), "1".into()]]);
        let markdown = doc.markdown();
        assert!(markdown.contains("| x\\|y | 1 |"), "{markdown}");
        let html = doc.html();
        for part in [
            "<h1>A &lt; B</h1>",
            "<strong>bold</strong> <code>a&lt;b</code> <a href=\"x/y.md\">link</a> 2 * 3",
            "<td>x|y</td><td class=\"n\">1</td>",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }
}
