//! The tables and their columns: what is created, filled, and printed as help.

/// A table.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// What a row is.
    pub about: &'static str,
    /// Its columns, in order.
    pub columns: &'static [Column],
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Its type in SQLite.
    pub sql: &'static str,
    /// What it holds.
    pub about: &'static str,
}

const fn text(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        sql: "TEXT",
        about,
    }
}

const fn int(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        sql: "INTEGER",
        about,
    }
}

const fn real(name: &'static str, about: &'static str) -> Column {
    Column {
        name,
        sql: "REAL",
        about,
    }
}

const RUN: Column = text("run", "the run's id");
const ARM: Column = text(
    "arm",
    "A, A' (the control), B; S (slowed) of a published run, C and D of two flags",
);
const TOKENS: Column = int("tokens", "tokens processed");
const WALL: Column = int("wall_ns", "wall time, nanoseconds");
const CONTEXT: Column = int("context", "tokens already in the context");
const SHEET: Column = text("sheet", "the file's name without its ending");
const MODEL: Column = text("model", "the model's id");
const ADAPTER: Column = text("adapter", "the adapter's name");
const DRIVER: Column = text("driver", "version and build of the driver");
const VARIANT: Column = text("variant", "the variant's id");

/// Every table.
pub const TABLES: &[Table] = &[
    Table {
        name: "runs",
        about: "one A/B run",
        columns: &[
            RUN,
            text("journal", "its file"),
            text("started_utc", "start, RFC 3339"),
            text("command", "the command line"),
            text("flag", "the flag under test, or two joined by a comma"),
            text(
                "mode",
                "how much evidence was gathered: screening or published",
            ),
            text("status", "complete, interrupted or void"),
            text("standing", "current, superseded or WITHDRAWN"),
            text(
                "metric",
                "what the verdict is about: decode, prefill, second turn or dispatch",
            ),
            real("margin_pct", "margin declared before the run, percent"),
            text(
                "verdict",
                "FASTER, SLOWER, EQUIVALENT, INCONCLUSIVE or INVALID; null of two flags",
            ),
            text("reason", "why this verdict, or why none"),
            real(
                "effect_pct",
                "100 (B/A - 1) of time, percent; below 0 is faster",
            ),
            real("ci_low_pct", "lower end of its interval"),
            real("ci_high_pct", "upper end of its interval"),
            real(
                "ci_level_pct",
                "confidence of the interval: 95 where screening",
            ),
            real("mde_pct", "minimum detectable effect, percent"),
            real("control_pct", "the same of A' against A"),
            real(
                "perplexity_pct",
                "change of perplexity, 100 (B/A - 1), of a lossy flag",
            ),
            int("blocks", "complete blocks"),
            int("replicates", "replicates of a published run"),
            real(
                "when_chosen_pct",
                "what B read when it was chosen among several values, percent",
            ),
            real("pct_of_roof", "weights read by A, percent of the read roof"),
            real(
                "read_roof_gb_s",
                "what the adapter reads, GB/s, as measured before the run",
            ),
            real(
                "dispatch_us",
                "a dispatch that waits, microseconds, likewise",
            ),
            text(
                "timer",
                "what timed single dispatches: GPU timestamps or wall time; null of whole tokens",
            ),
            int("checks_passed", "checks that passed"),
            int("checks_failed", "checks that failed"),
            MODEL,
            text("title", "the model with what was done to its weights"),
            text("weights", "gguf, synthetic, mlc or mlx"),
            text("weights_sha256", "SHA-256 of the weights"),
            int("parameters", "number of parameters"),
            int(
                "bytes_per_token",
                "bytes of weights and scales read for a token",
            ),
            int(
                "flops_per_token",
                "operations with these, two for each multiply-add; null of older records",
            ),
            text("prompt", "the prompt's name"),
            int("prompt_tokens", "its tokens"),
            int("decode_tokens", "tokens decoded in a timed element"),
            int("seed", "seed of the coin, the prompt and synthetic weights"),
            real("budget_s", "time that measuring may take, seconds"),
            ADAPTER,
            text("device_type", "as the adapter says"),
            text("backend", "vulkan, metal or dx12"),
            DRIVER,
            text("os", "operating system"),
            text("cpu", "the processor"),
            int("cores", "logical cores"),
            int("memory_bytes", "main memory"),
            text("workbench_commit", "commit of the workbench"),
            int("dirty", "1 where the working tree had other changes"),
            text("toolchain", "compiler"),
            text("runtime_checks", "run-time checks in the kernels"),
        ],
    },
    Table {
        name: "token_times",
        about: "one timing of whole tokens (`bench`); medians, null where a check failed",
        columns: &[
            RUN,
            text("journal", "its file"),
            text("started_utc", "start, RFC 3339"),
            text("command", "the command line"),
            text("status", "complete, interrupted or void"),
            text("standing", "current, superseded or WITHDRAWN"),
            int(
                "repetitions",
                "repetitions, each of the prompt and all tokens",
            ),
            real(
                "ttft_ms",
                "from the prompt to its first token, milliseconds",
            ),
            real("decode_tok_s", "tokens per second after it"),
            real("read_gb_s", "weights, keys and values read, GB/s"),
            real("gflop_s", "operations with these, GFLOP/s"),
            real("read_roof_gb_s", "what the adapter reads, GB/s"),
            real("pct_of_roof", "share of that, percent"),
            text("void", "why the times mean nothing, where they do not"),
            int("dispatches_per_token", "dispatches of a decoded token"),
            int("checks_passed", "checks that passed"),
            int("checks_failed", "checks that failed"),
            MODEL,
            text("title", "the model with what was done to its weights"),
            text("weights", "gguf, synthetic, mlc or mlx"),
            text("weights_sha256", "SHA-256 of the weights"),
            int(
                "bytes_per_token",
                "bytes of weights and scales read for a token",
            ),
            int(
                "flops_per_token",
                "operations with these, two for each multiply-add; null of older records",
            ),
            text("prompt", "the prompt's name"),
            int("prompt_tokens", "its tokens"),
            int("decode_tokens", "tokens decoded in a repetition"),
            ADAPTER,
            text("device_type", "as the adapter says"),
            text("backend", "vulkan, metal or dx12"),
            DRIVER,
            text("os", "operating system"),
            text("cpu", "the processor"),
            int("cores", "logical cores"),
            int("memory_bytes", "main memory"),
            text("workbench_commit", "commit of the workbench"),
            int("dirty", "1 where the working tree had other changes"),
            text("toolchain", "compiler"),
            text("runtime_checks", "run-time checks in the kernels"),
        ],
    },
    Table {
        name: "effects",
        about: "one effect of a run: the change of one flag, or both effects and the interaction of two",
        columns: &[
            RUN,
            text("of", "the flag, or both as `splitk x fuseqk`"),
            text("verdict", "its word"),
            real("effect_pct", "effect on time, percent"),
            real("ci_low_pct", "lower end of its interval"),
            real("ci_high_pct", "upper end of its interval"),
            real("mde_pct", "minimum detectable effect, percent"),
        ],
    },
    Table {
        name: "arms",
        about: "what one arm of a run runs, and its median times",
        columns: &[
            RUN,
            ARM,
            text("name", "the flag's value in it, `splitk=0`"),
            int("dispatches_per_token", "dispatches of a decoded token"),
            real("decode_ms_per_token", "median, milliseconds"),
            real("prefill_ms", "median of the whole prompt, milliseconds"),
            real(
                "second_turn_ms",
                "median to the first token of a second turn, milliseconds",
            ),
            real("dispatch_us", "median of one dispatch, microseconds"),
        ],
    },
    Table {
        name: "settings",
        about: "one flag's value in one arm",
        columns: &[
            RUN,
            ARM,
            text("flag", "the flag"),
            text("value", "its value"),
        ],
    },
    Table {
        name: "dispatches",
        about: "the dispatches of a decoded token in one arm, by role",
        columns: &[
            RUN,
            ARM,
            text("role", "the kernel's role"),
            int("count", "dispatches"),
        ],
    },
    Table {
        name: "shaders",
        about: "one shader of one arm",
        columns: &[RUN, ARM, VARIANT, text("sha256", "SHA-256 of its text")],
    },
    Table {
        name: "limits",
        about: "one limit in force in a run",
        columns: &[RUN, text("name", "the limit"), int("value", "its value")],
    },
    Table {
        name: "checks",
        about: "one comparison with the reference",
        columns: &[
            RUN,
            ARM,
            text("stage", "where in the model"),
            text("role", "the kernel's role"),
            int("elements", "values compared"),
            real("worst_abs", "largest absolute error"),
            real("worst_rel", "largest relative error"),
            real("bound", "the limit that decided"),
            real("worst_ratio", "largest error over its limit"),
            int("passed", "1 where it passed"),
            text("note", "why it failed, or what was excused"),
        ],
    },
    Table {
        name: "qualities",
        about: "how well one arm predicts one window of a text",
        columns: &[
            RUN,
            ARM,
            text("text", "what the text is"),
            int("window", "number of the window, from 0"),
            int("tokens", "tokens predicted"),
            real("nll", "mean negative log likelihood of these, nats"),
        ],
    },
    Table {
        name: "samples",
        about: "one timed element of a block; none of a run whose times are withheld",
        columns: &[
            RUN,
            int("block", "number of the block, from 0"),
            int("position", "place in the block, from 0"),
            ARM,
            TOKENS,
            int("dispatches", "dispatches recorded"),
            WALL,
        ],
    },
    Table {
        name: "spans",
        about: "one timed part of an element",
        columns: &[
            RUN,
            int("block", "number of the block"),
            int("position", "place in the block"),
            CONTEXT,
            TOKENS,
            WALL,
        ],
    },
    Table {
        name: "prefills",
        about: "one timed prefill",
        columns: &[
            RUN,
            ARM,
            int("number", "number in its arm, from 0"),
            TOKENS,
            WALL,
        ],
    },
    Table {
        name: "contexts",
        about: "one point of the sweep over context lengths",
        columns: &[RUN, ARM, CONTEXT, TOKENS, WALL],
    },
    Table {
        name: "replicates",
        about: "one replicate of a published run",
        columns: &[
            RUN,
            int("number", "its number, from 0"),
            real(
                "effect_pct",
                "100 (B/A - 1) of it; null where the verdict does not use it",
            ),
            real("load", "processes that ran in the minute before it"),
        ],
    },
    Table {
        name: "sentinels",
        about: "one timing of the sentinel, after a block of a published run",
        columns: &[RUN, int("block", "number of the block"), WALL],
    },
    Table {
        name: "kernel_times",
        about: "one sample of one kernel, from `bench --kernels --csv`",
        columns: &[
            SHEET,
            MODEL,
            ADAPTER,
            DRIVER,
            int("timestamps", "1 where GPU timestamps were used"),
            text("site", "place in a layer"),
            text("role", "the kernel's role"),
            VARIANT,
            text("shape", "rows and columns of the matrix"),
            text("mode", "cold, cold_dependent or warm"),
            int(
                "dispatches_per_token",
                "dispatches of the site in a decoded token",
            ),
            int("weight_bytes", "bytes of weights that one dispatch reads"),
            int("weight_sets", "sets of weights in turn"),
            int("sample", "number of the sample, from 0"),
            int("dispatches", "dispatches of the sample"),
            int("ns", "time of all of them, nanoseconds"),
            int(
                "weight_flops",
                "operations of one dispatch with its weights; null of older sheets",
            ),
            real(
                "read_roof_gb_s",
                "what the adapter reads, GB/s; null of a CPU and of older sheets",
            ),
        ],
    },
    Table {
        name: "checked_kernels",
        about: "what one kernel passed on one adapter, from `check --csv`",
        columns: &[
            SHEET,
            ADAPTER,
            DRIVER,
            int("seed", "seed of the cases"),
            text("shard", "the part of the sweep"),
            VARIANT,
            int("cases", "cases that ran"),
            int("passed", "those that passed"),
            int("failed", "those that failed"),
            int("skipped", "cases without their data"),
            text("unrun", "why the variant did not run"),
        ],
    },
    Table {
        name: "external",
        about: "figures of another engine: published by its authors, or imported",
        columns: &[
            text("id", "the record's name"),
            text("kind", "published or imported"),
            text("engine", "the engine"),
            text("engine_version", "its version or commit"),
            text("source", "where it was published, or the imported file"),
            text("source_sha256", "SHA-256 of the imported file"),
            text("date", "day of the measurement"),
            text("hardware", "the device that computed"),
            text("backend", "API or library below the engine"),
            MODEL,
            text("quantisation", "the weights' format"),
            real("bytes_per_weight", "with a weight's share of scales"),
            text("prompt", "what the prompt was"),
            int("prompt_tokens", "its tokens"),
            int("decode_tokens", "tokens decoded"),
            real("total_tok_s", "tokens per second of the whole time"),
            real("ttft_ms", "time to the first token, milliseconds"),
            real("decode_tok_s", "tokens per second after the first"),
            real("prefill_tok_s", "prompt tokens per second"),
            text("statistic", "what the figures are"),
            text("pair", "figures published beside each other"),
            text("standing", "current, superseded or WITHDRAWN"),
            text("why", "why its authors do not stand by it"),
        ],
    },
    Table {
        name: "history",
        about: "a result of this workbench that was superseded or withdrawn",
        columns: &[
            RUN,
            text("standing", "superseded or WITHDRAWN"),
            text("date", "when that was found"),
            text("by", "the run that takes its place"),
            text("why", "the reason"),
        ],
    },
];

/// Every table and column, as help.
pub fn describe() -> String {
    let mut out = String::new();
    for table in TABLES {
        out.push_str(&format!("{}: {}\n", table.name, table.about));
        for column in table.columns {
            out.push_str(&format!(
                "  {:<21} {:<8} {}\n",
                column.name, column.sql, column.about
            ));
        }
    }
    out
}
