//! "Did you mean": the sentence that ends every error about an unknown name.

/// Names that an error lists.
const MOST_LISTED: usize = 40;
/// Names that it lists of more than that, the nearest ones.
const NEAREST_LISTED: usize = 5;

/// Lists what exists and, where one is close enough, the nearest match.
///
/// `known` is listed in the order given; of more than 40 names the five nearest are.
pub fn known<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let list = if known.len() > MOST_LISTED {
        let mut near = known.clone();
        near.sort_by(|a, b| similarity(found, b).total_cmp(&similarity(found, a)));
        near.truncate(NEAREST_LISTED);
        let others = known.len() - near.len();
        format!("{} and {others} others", near.join(", "))
    } else {
        known.join(", ")
    };
    match nearest(found, &known) {
        Some(name) => format!("known: {list}; did you mean `{name}`?"),
        None => format!("known: {list}"),
    }
}

/// The nearest of `known` by Jaro-Winkler similarity, if any is near (above 0.7).
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    // Of equally near ones the first, which `max_by` takes from the back.
    let all = known.iter().rev();
    all.map(|&name| (similarity(found, name), name))
        .filter(|&(score, _)| score > 0.7)
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
        let text = known("name4", names.iter().map(String::as_str));
        assert!(
            text.starts_with("known: name04, name14, name24, name34, "),
            "{text}"
        );
        assert!(
            text.ends_with(" and 95 others; did you mean `name04`?"),
            "{text}"
        );
    }
}
