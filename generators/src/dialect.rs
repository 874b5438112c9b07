//! The dialects of WGSL: naga's, which runs natively, and that of browsers.

use std::{fmt, str::FromStr};

/// Who takes a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// naga: subgroup builtins work without a directive, and `enable subgroups;`
    /// is a parse error.
    Native,
    /// A browser: subgroup builtins need `enable subgroups;`.
    Browser,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 2] = [Self::Native, Self::Browser];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Browser => "browser",
        }
    }

    /// A native text in this dialect.
    pub fn of_native(self, wgsl: &str) -> String {
        match self {
            Self::Browser if uses_subgroups(wgsl) => {
                // Directives stand before all else; only comments may precede them.
                let is_code = |line: &&str| !line.trim().is_empty() && !line.starts_with("//");
                let (comments, _) = (wgsl.split_inclusive('\n'))
                    .find(is_code)
                    .and_then(|line| wgsl.split_once(line))
                    .unwrap_or((wgsl, ""));
                let (_, code) = wgsl.split_at(comments.len());
                format!("{comments}enable subgroups;\n{code}")
            }
            Self::Native | Self::Browser => wgsl.to_owned(),
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|dialect| dialect.name() == name)
            .ok_or_else(|| format!("expected native or browser, found `{name}`"))
    }
}

/// Whether a text calls a subgroup function or reads a subgroup builtin; what a
/// comment says does not count.
fn uses_subgroups(wgsl: &str) -> bool {
    let code = wgsl.lines().map(|line| match line.split_once("//") {
        Some((code, _)) => code,
        None => line,
    });
    code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .any(is_of_subgroups)
}

/// The names that WGSL's subgroups extension brings.
fn is_of_subgroups(word: &str) -> bool {
    let function = |prefix: &str| {
        let rest = word.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    let builtins = [
        "subgroup_invocation_id",
        "subgroup_size",
        "subgroup_id",
        "num_subgroups",
        "quadBroadcast",
        "quadSwapX",
        "quadSwapY",
        "quadSwapDiagonal",
    ];
    function("subgroup") || builtins.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_text_that_uses_subgroups_is_changed_and_only_for_a_browser() {
        let with = |code: &str| format!("// a kernel\nenable f16;\n\n{code}\n");
        let plain = [
            "let x = 1; // subgroupAdd(x) would be wrong",
            "fn quad(words: vec2<u32>) -> vec4<f32> {",
            "let subgroup = 1; let subgrouped = subgroup;",
        ];
        for code in plain {
            assert_eq!(
                Dialect::Browser.of_native(&with(code)),
                with(code),
                "{code}"
            );
        }
        let users = [
            "let s = subgroupAdd(x);",
            "  @builtin(subgroup_size) size: u32,",
            "let y = subgroupBroadcast( x, 0u ); // all",
            "let y=quadSwapX(x);",
        ];
        for code in users {
            let native = with(code);
            assert_eq!(Dialect::Native.of_native(&native), native, "{code}");
            let browser = Dialect::Browser.of_native(&native);
            let expected = native.replace("enable f16;\n", "enable subgroups;\nenable f16;\n");
            assert_eq!(browser, expected, "{code}");
        }
    }

    #[test]
    fn names_parse_back() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.name().parse(), Ok(dialect), "{dialect}");
        }
        let error = "tint".parse::<Dialect>().expect_err("no dialect");
        assert_eq!(error, "expected native or browser, found `tint`");
    }
}
