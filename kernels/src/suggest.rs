//! "Did you mean": the sentence that ends every error about an unknown name.

/// Lists what exists and, where one is close enough, the nearest match.
///
/// `known` is listed in the order given.
pub fn known<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let list = known.join(", ");
    match nearest(found, &known) {
        Some(name) => format!("known: {list}; did you mean `{name}`?"),
        None => format!("known: {list}"),
    }
}

/// The nearest of `known` by Jaro-Winkler similarity, if any is near (above 0.7).
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let found = found.to_lowercase();
    known
        .iter()
        .map(|&name| (strsim::jaro_winkler(&found, &name.to_lowercase()), name))
        .filter(|&(score, _)| score > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
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
}
