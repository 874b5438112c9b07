//! "Did you mean": the sentence that ends every error about an unknown name.

/// Names of a long table that an error lists.
const NEAREST_LISTED: usize = 5;
/// Similarity from which on a name is near.
const NEAR: f64 = 0.7;

/// Lists what exists, in the order given, and where one is close enough the nearest match.
pub fn known<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let list = format!("known: {}", known.join(", "));
    match nearest(found, &known) {
        Some(name) => format!("{list}; did you mean `{name}`?"),
        None => list,
    }
}

/// The same of a table too long to list: the five names that are nearest, as far as they
/// are near, and `all`, which says where every name stands.
///
/// A name that has the text found in it is nearer than one that has not, and nearer the
/// shorter it is; of equally near ones the first of the table goes before the others.
pub fn nearest_known<'a>(
    found: &str,
    known: impl IntoIterator<Item = &'a str>,
    all: &str,
) -> String {
    let lower = found.to_lowercase();
    let score = |name: &str| match name.to_lowercase().contains(&lower) {
        true => 1.0 + lower.len() as f64 / name.len() as f64,
        false => similarity(found, name),
    };
    let known: Vec<&str> = known.into_iter().collect();
    let scored = known.iter().map(|&name| (score(name), name));
    let mut near: Vec<(f64, &str)> = scored.filter(|&(score, _)| score > NEAR).collect();
    near.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    near.truncate(NEAREST_LISTED);
    let near: Vec<&str> = near.into_iter().map(|(_, name)| name).collect();
    match near[..] {
        [] => format!("none of the {} known is near; {all}", known.len()),
        [first, ..] => format!(
            "the nearest of {} known: {}; did you mean `{first}`? {all}",
            known.len(),
            near.join(", ")
        ),
    }
}

/// The nearest of `known` by Jaro-Winkler similarity, if any is near (above 0.7).
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    // Of equally near ones the first, which `max_by` takes from the back.
    let all = known.iter().rev();
    all.map(|&name| (similarity(found, name), name))
        .filter(|&(score, _)| score > NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Jaro-Winkler similarity, whatever the case.
fn similarity(found: &str, name: &str) -> f64 {
    strsim::jaro_winkler(&found.to_lowercase(), &name.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_a_slip_and_refuses_a_stranger() {
        let names = ["splitk", "rowwise", "vec4"];
        assert_eq!(nearest("split-k", &names), Some("splitk"), "a slip");
        assert_eq!(nearest("zzz", &names), None, "a stranger");
    }

    #[test]
    fn of_many_names_the_nearest_are_listed() {
        let names: Vec<String> = (0..100).map(|i| format!("name{i:02}")).collect();
        let of = |found| {
            let names = names.iter().map(String::as_str);
            nearest_known(found, names, "`ls` lists all")
        };
        let text = of("name4");
        assert_eq!(
            text,
            "the nearest of 100 known: name40, name41, name42, name43, name44; did you mean \
             `name40`? `ls` lists all",
            "those that have it in them, in their order"
        );
        let text = of("E99");
        assert!(
            text.contains("known: name99; did you mean `name99`?"),
            "{text}"
        );
        let text = of("zzz");
        assert_eq!(text, "none of the 100 known is near; `ls` lists all");
    }
}
