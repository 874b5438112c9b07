//! Named cases of single kernels: for each variant of each role the properties of
//! its role, drawn from a seed, and golden vectors. The tests run them,
//! `check --case` replays one of them, and `mutants` asks whether they can fail.

mod bench;
mod data;
mod properties;
mod roles;
mod sweep;
mod vectors;

pub use bench::{Bench, Edit, is_dispatched, model, reading, selection};
pub use sweep::{Failure, Reasoned, VariantCases, sweep};

use crate::expectations::{self, Expectation};
use anyhow::{Context as _, Result, anyhow};
use kernels::{Elem, Variant, suggest, variants::VARIANTS};
use properties::{Draw, PROPERTIES, Property};
use results::draw::split_mix;
use std::{fmt, path::Path};
use vectors::{VECTORS, Vectors};

/// Seed of the cases where nobody names another: the same ones on every run.
pub const SEED: u64 = 20_251_130;
/// Cases drawn of a property of a variant.
pub const DRAWN: usize = 16;
/// Every simpler case that is tried after a failure is compiled and run.
const SHRINKS: u32 = 64;

/// A property or the golden vectors of one variant.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    variant: Variant,
    holds: Holds,
}

#[derive(Clone, Copy, Debug)]
enum Holds {
    Property(&'static Property),
    Vectors(&'static Vectors),
}

/// Every case, by variant in the order of their table.
pub fn all() -> impl Iterator<Item = Case> {
    VARIANTS.iter().flat_map(|&variant| of(variant))
}

/// The cases of a variant.
pub fn of(variant: Variant) -> impl Iterator<Item = Case> {
    let properties = PROPERTIES.iter().filter(move |p| p.holds(variant));
    let vectors = VECTORS.iter().filter(move |v| v.hold(variant));
    let properties = properties.map(Holds::Property);
    let holds = properties.chain(vectors.map(Holds::Vectors));
    holds.map(move |holds| Case { variant, holds })
}

/// The case of an id `role/variant/property`.
///
/// # Errors
/// Names the nearest cases.
pub fn find(id: &str) -> Result<Case> {
    all().find(|case| case.id() == id).ok_or_else(|| {
        let ids: Vec<String> = all().map(|case| case.id()).collect();
        let all = "`cargo xtask kernels list` lists the variants";
        let known = suggest::nearest_known(id, ids.iter().map(String::as_str), all);
        anyhow!("unknown case `{id}`; expected ROLE/VARIANT/PROPERTY; {known}")
    })
}

/// `count` seeds that follow from one.
pub fn seeds(mut base: u64, count: usize) -> Vec<u64> {
    // 32 bits are enough, and can be typed.
    (0..count).map(|_| split_mix(&mut base) >> 32).collect()
}

impl Case {
    /// Its id, `role/variant/property`.
    pub fn id(&self) -> String {
        let name = match self.holds {
            Holds::Property(property) => property.name,
            Holds::Vectors(_) => "golden",
        };
        format!("{}/{}/{name}", self.variant.role, self.variant)
    }

    /// The variant.
    pub const fn variant(&self) -> Variant {
        self.variant
    }

    /// Whether a seed draws another case of it.
    pub const fn is_drawn(&self) -> bool {
        match self.holds {
            Holds::Property(property) => property.drawn,
            Holds::Vectors(_) => false,
        }
    }

    /// The file of golden data that it reads, if it does.
    pub const fn golden_file(&self) -> Option<&'static str> {
        match self.holds {
            Holds::Property(_) => None,
            Holds::Vectors(vectors) => Some(vectors.file),
        }
    }

    /// Whether it can run with this folder of golden data.
    pub fn can_run(&self, golden: Option<&Path>) -> bool {
        self.golden_file()
            .is_none_or(|file| golden.is_some_and(|folder| folder.join(file).exists()))
    }

    /// The seeds that a test runs it with: `drawn` of them where a seed draws
    /// another case, else one. A form is drawn fully in q4f16_1 and f16, a share of
    /// that in every other format or type, and once in another format and type or,
    /// for several vectors, in another format.
    pub fn seeds(&self, base: u64, drawn: usize) -> Vec<u64> {
        let variant = self.variant;
        let share = match (variant.in_base_format(), variant.elem.max(variant.out)) {
            (true, Elem::F16) => 1,
            (true, Elem::F32) => 4,
            (false, Elem::F16) if !variant.is_batched() => 8,
            (false, Elem::F16 | Elem::F32) => drawn.max(1),
        };
        let count = match self.holds {
            Holds::Property(property) if property.drawn => drawn.div_ceil(share),
            Holds::Property(_) | Holds::Vectors(_) => 1,
        };
        seeds(base, count)
    }

    /// The command that runs it again.
    pub fn again(&self, seed: u64) -> String {
        format!("cargo xtask check --case {} --seed {seed}", self.id())
    }

    /// Its known failure on the bench's driver.
    pub fn expectation(&self, bench: &Bench<'_>) -> Option<&'static Expectation> {
        expectations::of(bench.driver, &self.id())
    }

    /// Runs it; after a failure it looks for a simpler case that fails too. `Some`
    /// where it failed as is known of the driver.
    ///
    /// # Errors
    /// When the kernel is wrong, or cannot be run, or passes although it is known to
    /// fail; the message ends with the command that runs the case again.
    pub fn run(&self, bench: &mut Bench<'_>, seed: u64) -> Result<Option<&'static Expectation>> {
        let again = || format!("{} fails; again: {}", self.id(), self.again(seed));
        let expected = self.expectation(bench);
        let shrinks = if expected.is_some() { 0 } else { SHRINKS };
        let result = self.judge(bench, seed, shrinks);
        expectations::settle(expected, result).with_context(again)
    }

    /// Runs it, and is content with the first failure.
    pub(crate) fn judge(&self, bench: &mut Bench<'_>, seed: u64, shrinks: u32) -> Result<()> {
        match self.holds {
            Holds::Property(property) => {
                (property.run)(bench, self.variant, Draw { seed, shrinks })
            }
            Holds::Vectors(vectors) => vectors.run(bench, self.variant),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())
    }
}
