//! A part of a sweep: which items of a plan one machine takes.

use std::fmt;
use std::str::FromStr;

/// The part `index` of `of`: every `of`th item of the plan, in its order, so that
/// each item is in exactly one part and the parts take about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    of: usize,
}

impl Shard {
    /// Everything: the only part of one.
    pub const WHOLE: Self = Self { index: 1, of: 1 };

    /// Whether it is the first part, which has what is not divided.
    pub const fn is_first(self) -> bool {
        self.index == 1
    }

    /// The items of this part, in the order of the plan.
    pub fn take<T>(self, items: impl IntoIterator<Item = T>) -> Vec<T> {
        (items.into_iter().enumerate())
            .filter(|(at, _)| at % self.of == self.index - 1)
            .map(|(_, item)| item)
            .collect()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(index, of)| {
            let (index, of) = (index.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&index).then_some(Self { index, of })
        });
        parts.ok_or_else(|| {
            format!("expected a part as 1/4 (the first of four, up to 4/4), found `{text}`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_in_exactly_one_part() {
        for of in 1..6 {
            let mut all: Vec<usize> = (1..=of)
                .flat_map(|index| Shard { index, of }.take(0..17))
                .collect();
            all.sort_unstable();
            assert_eq!(all, (0..17).collect::<Vec<_>>(), "{of} parts");
        }
        assert_eq!(Shard::WHOLE.take(0..3), [0, 1, 2], "the whole");
    }

    #[test]
    fn a_part_that_is_none_is_refused() {
        let read = |text: &str| text.parse::<Shard>();
        let second = read("2/3").expect("a part");
        assert_eq!(
            (second.to_string(), second.take(0..7)),
            ("2/3".into(), vec![1, 4])
        );
        for text in ["0/3", "4/3", "1/0", "1", "a/b", "1/2/3", "-1/2", ""] {
            let error = read(text).expect_err(text);
            assert!(error.contains("1/4") && error.contains(text), "{error}");
        }
    }
}
