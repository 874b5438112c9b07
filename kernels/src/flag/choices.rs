//! Choices as they are typed, and those that select a variant.

use super::{Choices, FLAGS, Flag, FlagError, Settings};
use crate::{features::Features, variants::Variant};

/// The choices that select a variant where every other flag is off: what it asks of
/// each, and what those need.
pub fn choices_for(variant: &Variant) -> Choices {
    let mut choices: Choices = FLAGS
        .iter()
        .map(|flag| {
            let asked = (flag.selects)(variant);
            (flag.name, asked.unwrap_or(flag.off()))
        })
        .collect();
    let mut on: Vec<&'static Flag> = FLAGS.iter().filter(|f| choices[f.name].is_on()).collect();
    while let Some(flag) = on.pop() {
        for need in flag.needs.iter().filter_map(|name| Flag::find(name).ok()) {
            if !choices[need.name].is_on() {
                choices.insert(need.name, need.first_on());
                on.push(need);
            }
        }
    }
    choices
}

impl Settings {
    /// The choices that a flag lacks: what it needs that is off, and what that needs. What
    /// follows one of them comes along unless it was chosen off.
    pub(super) fn lacked(&self, flag: &Flag, features: &Features) -> Vec<String> {
        let mut off: Vec<&Flag> = vec![];
        let mut names = flag.needs.to_vec();
        while let Some(need) = names.pop().and_then(|name| Flag::find(name).ok()) {
            if !self.get(need.name).is_on() && off.iter().all(|known| known.name != need.name) {
                off.push(need);
                names.extend(need.needs);
            }
        }
        let comes_along = |need: &&&Flag| {
            let leads = |other: &&Flag| need.follows == Some(other.name);
            !self.explicit.contains(need.name) && off.iter().any(leads)
        };
        let chosen = off.iter().filter(|need| !comes_along(need));
        chosen
            .map(|need| {
                let [_, on] = need.arms(features);
                format!("{}={on}", need.name)
            })
            .collect()
    }
}

/// Reads `name=value` (or `name`, which is the flag's first value that is on)
/// into `choices`.
///
/// # Errors
/// Unknown name or value; a flag given twice.
pub fn parse_choice(text: &str, choices: &mut Choices) -> Result<(), FlagError> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (text.trim(), None),
    };
    let flag = Flag::find(name)?;
    let value = match value {
        Some(value) => flag.parse(value)?,
        None => flag.first_on(),
    };
    match choices.insert(flag.name, value) {
        Some(before) if before != value => Err(FlagError::Twice {
            name: flag.name,
            first: before,
            second: value,
        }),
        _ => Ok(()),
    }
}
