//! Known failures of drivers, as data. A case that is listed for a driver must
//! still fail on it: where it passes, the driver was mended, or the fault was ours,
//! and the row must go. Such a case proves nothing of a mutant.

use anyhow::{Result, anyhow};

/// A case that fails on a driver although the kernel is right.
#[derive(Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Part of the driver's name, as the adapter gives it.
    pub driver: &'static str,
    /// The case, `role/variant/property`.
    pub case: &'static str,
    /// What the driver does wrong.
    pub reason: &'static str,
    /// Where else it was seen.
    pub report: &'static str,
}

/// Mesa's software driver and long loops; `context_2048` shows the same kernels right
/// where their loops are shorter.
const fn loop_limit(case: &'static str) -> Expectation {
    Expectation {
        driver: "llvmpipe",
        case,
        reason: "llvmpipe ends every loop of an invocation, without an error, once all its loops \
                 together have made 65,535 rounds",
        report: "https://github.com/ggml-org/llama.cpp/pull/13813",
    }
}

/// Every known failure.
pub const EXPECTATIONS: &[Expectation] = &[
    loop_limit("attention/attention/context_8192"),
    loop_limit("attention/attention_elem32/context_8192"),
    loop_limit("attention/attention_row_vec4/context_8192"),
    loop_limit("attention/attention_row_vec4_elem32/context_8192"),
];

/// The row of a case on a driver.
pub fn of(driver: &str, case: &str) -> Option<&'static Expectation> {
    EXPECTATIONS
        .iter()
        .find(|row| driver.contains(row.driver) && row.case == case)
}

/// The result of a case with what was expected of it; `Some` where it failed as
/// expected.
///
/// # Errors
/// The case's own error where none was expected, and a pass where a failure was.
pub fn settle(
    expected: Option<&'static Expectation>,
    result: Result<()>,
) -> Result<Option<&'static Expectation>> {
    match (expected, result) {
        (None, result) => result.map(|()| None),
        (Some(row), Err(_)) => Ok(Some(row)),
        (Some(row), Ok(())) => Err(anyhow!(
            "{} passes, and is expected to fail on {}, because {}; if the driver was mended, \
             remove its row of EXPECTATIONS in harness/src/expectations.rs",
            row.case,
            row.driver,
            row.reason
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_names_a_case_once_and_says_why() {
        let rows: BTreeSet<_> = EXPECTATIONS.iter().map(|r| (r.driver, r.case)).collect();
        assert_eq!(rows.len(), EXPECTATIONS.len(), "each once");
        for row in EXPECTATIONS {
            cases::find(row.case).expect("a case");
            assert!(!row.driver.is_empty() && !row.reason.is_empty(), "{row:?}");
            assert!(row.report.starts_with("https://"), "{row:?}");
        }
    }

    #[test]
    fn an_expected_failure_that_passes_is_an_error() {
        let [row, ..] = EXPECTATIONS else {
            panic!("a row");
        };
        assert_eq!(of("llvmpipe", row.case), Some(row), "by driver and case");
        assert_eq!(of("RADV", row.case), None, "another driver");
        assert_eq!(of("llvmpipe", "rope/rope/drawn"), None, "another case");
        let failed = || Err(anyhow!("out[0]: expected 1 within 0, found 2"));
        assert_eq!(
            settle(Some(row), failed()).ok(),
            Some(Some(row)),
            "as expected"
        );
        let error = settle(Some(row), Ok(()))
            .expect_err("it passes")
            .to_string();
        assert!(error.contains("remove its row"), "{error}");
        assert_eq!(settle(None, Ok(())).ok(), Some(None), "a pass");
        settle(None, failed()).expect_err("a failure");
    }
}
