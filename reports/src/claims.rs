//! Numbers in prose as references into the records. Behind a number stands
//! `<!--= SELECT ... -->`, which a reader does not see: the number must be what the
//! question gives, rounded to the digits that are written.

use results::query::query;
use results::store::Store;

/// What opens a reference.
const OPEN: &str = "<!--=";
/// What closes it.
const CLOSE: &str = "-->";
/// Units of what is measured.
const UNITS: [&str; 11] = [
    "%",
    "tok/s",
    "tokens per second",
    "ms",
    "\u{b5}s",
    "us",
    "GB/s",
    "TB/s",
    "GFLOP/s",
    "\u{d7}",
    "times",
];

/// What is wrong with the numbers of a text, by line.
pub(crate) fn wrong(name: &str, text: &str, store: &Store) -> Vec<String> {
    let mut found = Vec::new();
    for (line, paragraph) in paragraphs(text) {
        let at = |inside: usize| line + paragraph[..inside].matches('\n').count();
        for reference in references(paragraph) {
            let place = format!("{name}:{}", at(reference.at));
            if let Some(problem) = reference.problem(store) {
                found.push(format!("{place}: {problem}"));
            }
        }
        if is_claim(paragraph) {
            for (inside, number) in unreferenced(paragraph) {
                found.push(format!(
                    "{name}:{}: `{number}` stands in a paragraph about a report and has no record; \
                     put {OPEN} SELECT ... {CLOSE} behind the number",
                    at(inside)
                ));
            }
        }
    }
    found
}

/// The paragraphs of a text outside of blocks of code, each with its line.
fn paragraphs(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut from, mut offset, mut line, mut first, mut code) = (0, 0, 1, 1, false);
    for part in text.split_inclusive('\n') {
        let fence = part.trim_start().starts_with("```");
        if fence || part.trim().is_empty() {
            if !code {
                found.push((first, &text[from..offset]));
            }
            code ^= fence;
            from = offset + part.len();
            first = line + 1;
        }
        offset += part.len();
        line += 1;
    }
    if !code {
        found.push((first, &text[from..]));
    }
    found.retain(|(_, paragraph)| !paragraph.trim().is_empty());
    found
}

/// A paragraph that shows a report makes claims.
fn is_claim(paragraph: &str) -> bool {
    paragraph.match_indices("reports/").any(|(at, found)| {
        let rest = &paragraph[at + found.len()..];
        rest.starts_with(|c: char| c.is_ascii_digit())
    })
}

/// A number and the question behind it.
struct Reference<'a> {
    at: usize,
    number: Option<&'a str>,
    sql: &'a str,
}

fn references(paragraph: &str) -> Vec<Reference<'_>> {
    let mut found = Vec::new();
    for (at, _) in paragraph.match_indices(OPEN) {
        // One in code is an example.
        if paragraph[..at].ends_with('`') {
            continue;
        }
        let inside = &paragraph[at + OPEN.len()..];
        let sql = inside.find(CLOSE).map_or("", |end| inside[..end].trim());
        found.push(Reference {
            at,
            number: last_number(&paragraph[..at]),
            sql,
        });
    }
    found
}

impl Reference<'_> {
    fn problem(&self, store: &Store) -> Option<String> {
        let Some(number) = self.number else {
            return Some(format!("{OPEN} ... {CLOSE} without a number before it"));
        };
        if self.sql.is_empty() {
            return Some(format!(
                "`{number}`: the reference behind it has no end or no question"
            ));
        }
        let answer = match query(store, self.sql) {
            Ok(answer) => answer,
            Err(error) => return Some(format!("`{number}`: {error}")),
        };
        let [row] = &answer.rows[..] else {
            return Some(format!(
                "`{number}`: its question has {} rows, expected one; is the record there?",
                answer.rows.len()
            ));
        };
        let decimals = number
            .split_once('.')
            .map_or(0, |(_, decimals)| decimals.len());
        match row.first().and_then(|value| value.as_f64()) {
            None => Some(format!("`{number}`: the records give no number")),
            Some(value) => {
                let given = format!("{value:.decimals$}");
                (given != number.replace([',', '\u{2212}'], ""))
                    .then(|| format!("the text says {number}, the records say {given} ({value})"))
            }
        }
    }
}

/// The number that a text ends with, its unit apart.
fn last_number(text: &str) -> Option<&str> {
    let mut end = text.trim_end();
    for unit in UNITS {
        if let Some(rest) = end.strip_suffix(unit) {
            end = rest.trim_end();
        }
    }
    let digits = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let number = &end[end.trim_end_matches(digits).len()..];
    let number = number.trim_start_matches(['.', ',']);
    (!number.is_empty()).then_some(number)
}

/// Numbers with a unit of what is measured and no reference behind them.
fn unreferenced(paragraph: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for unit in UNITS {
        for (at, _) in paragraph.match_indices(unit) {
            let (before, after) = (&paragraph[..at], &paragraph[at + unit.len()..]);
            let alone = !after.starts_with(|c: char| c.is_alphanumeric() || c == '/');
            let ends_in_number = before.trim_end_matches([' ', '\u{a0}']);
            let is_number = ends_in_number.ends_with(|c: char| c.is_ascii_digit());
            let in_reference = before
                .rfind(OPEN)
                .is_some_and(|open| !before[open..].contains(CLOSE));
            if alone && is_number && !in_reference && !after.trim_start().starts_with(OPEN) {
                let number = last_number(before).unwrap_or_default();
                found.push((at, format!("{number} {unit}")));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        wrong("README.md", text, &Store::default())
    }

    #[test]
    fn a_number_is_what_its_question_gives() {
        for right in [
            "takes 77 %<!--= SELECT 77.2 --> off",
            "takes 77.2 % <!--= SELECT 77.2 --> off",
            "1,400 tok/s<!--= SELECT 1400 -->",
            "`cargo` has 3<!--= SELECT 3 --> arms",
            "write `<!--= SELECT ... -->` behind it",
        ] {
            assert_eq!(found(right), Vec::<String>::new(), "{right}");
        }
        for (wrong, reason) in [
            (
                "takes 78 %<!--= SELECT 77.2 --> off",
                "says 78, the records say 77",
            ),
            ("77 %<!--= SELECT 77 FROM runs -->", "0 rows"),
            ("77 %<!--= SELECT 'fast' -->", "no number"),
            ("77 %<!--= SELECT x FROM nowhere -->", "nowhere"),
            ("77 %<!--= DROP TABLE runs -->", "more than read"),
            ("much<!--= SELECT 1 -->", "without a number"),
            ("77 %<!--= SELECT 77", "no end"),
        ] {
            let found = found(wrong);
            assert!(
                found.len() == 1 && found[0].contains(reason),
                "{wrong}: {found:?}"
            );
        }
    }

    #[test]
    fn a_paragraph_that_shows_a_report_has_a_record_for_each_number() {
        let text = "Margins are 2 %.\n\nA change [cost\n13 %](reports/2026-11-30-x/README.md).\n";
        let found = found(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("README.md:4: `13 %`"), "{found:?}");
        let code = "```text\nreports/2026-11-30-x 13 %\n```\n";
        assert_eq!(
            super::wrong("x", code, &Store::default()),
            Vec::<String>::new(),
            "code"
        );
        let linked = "[cost 13 %<!--= SELECT 13 -->](reports/2026-11-30-x/README.md)";
        assert_eq!(
            super::wrong("x", linked, &Store::default()),
            Vec::<String>::new(),
            "{linked}"
        );
    }
}
