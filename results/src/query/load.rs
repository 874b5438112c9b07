//! The store into the tables.

use std::path::Path;

use kernels::Variant;
use rusqlite::types::Value;
use rusqlite::{Connection, Result, params_from_iter};

use super::TABLES;
use crate::external::External;
use crate::journal::AbRun;
use crate::record::{Adapter, Arm, Environment};
use crate::sheet::{CheckedKernel, KernelTime};
use crate::store::Store;
use crate::summary::{AbSummary, Analysis, PublishedSummary};
use crate::tokens::TokenTimes;

/// Creates every table and fills it.
pub(super) fn fill(connection: &Connection, store: &Store) -> Result<()> {
    connection.execute_batch("BEGIN")?;
    for table in TABLES {
        let columns: Vec<String> = (table.columns.iter())
            .map(|column| format!("\"{}\" {}", column.name, column.sql))
            .collect();
        let create = format!("CREATE TABLE {} ({})", table.name, columns.join(", "));
        connection.execute(&create, ())?;
    }
    let into = Filler(connection);
    for run in &store.runs {
        into.run(store, run)?;
    }
    for run in &store.benches {
        into.bench(store, run)?;
    }
    for (sheet, row) in &store.kernel_times {
        into.kernel_time(sheet, row)?;
    }
    for (sheet, row) in &store.checked_kernels {
        into.checked_kernel(sheet, row)?;
    }
    for record in &store.external {
        into.external(record)?;
    }
    for entry in &store.history {
        let row = [
            text(&entry.run),
            text(entry.standing),
            text(&entry.date),
            some(entry.by.as_ref()),
            text(&entry.why),
        ];
        into.row("history", row)?;
    }
    connection.execute_batch("COMMIT")
}

fn text(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}

fn some(value: Option<impl ToString>) -> Value {
    value.map_or(Value::Null, text)
}

/// Numbers of the record fit: they are counts and nanoseconds.
fn int(value: impl TryInto<i64>) -> Value {
    value.try_into().map_or(Value::Null, Value::Integer)
}

fn real(value: impl Into<Option<f64>>) -> Value {
    // SQLite has no NaN: it would be null, which says the same.
    value.into().map_or(Value::Null, Value::Real)
}

struct Filler<'c>(&'c Connection);

impl Filler<'_> {
    fn row(&self, table: &str, row: impl IntoIterator<Item = Value>) -> Result<()> {
        let row: Vec<Value> = row.into_iter().collect();
        let places: Vec<&str> = row.iter().map(|_| "?").collect();
        // SQLite refuses a row of another length than its table.
        let insert = format!("INSERT INTO {table} VALUES ({})", places.join(", "));
        let mut insert = self.0.prepare(&insert)?;
        insert.execute(params_from_iter(row)).map(drop)
    }

    fn run(&self, store: &Store, run: &AbRun) -> Result<()> {
        // A run that may not be summarised has its record and no numbers.
        let summary = AbSummary::of(run, Path::new(""));
        self.head(store, run, summary.as_ref())?;
        self.details(run, summary.as_ref().ok())?;
        // No time without proof.
        let proven = Analysis::of(run).is_ok_and(|analysis| analysis.withheld.is_none());
        if proven { self.times(run) } else { Ok(()) }
    }

    /// A timing of whole tokens; no time without proof.
    fn bench(&self, store: &Store, run: &AbRun) -> Result<()> {
        let times = TokenTimes::of(run).ok().flatten();
        let of = times.as_ref();
        let (model, prompt) = (&run.run.model, &run.run.prompt);
        let mut row = vec![
            text(&run.run.id),
            text(run.journal.display()),
            text(&run.run.started_utc),
            text(&run.run.command),
            text(run.status()),
            text(store.standing(&run.run.id)),
            of.map_or(Value::Null, |t| int(t.repetitions as u64)),
            real(of.map(|t| t.ttft_ms)),
            real(of.map(|t| t.decode_tok_s)),
            real(of.map(|t| t.read_gb_s)),
            real(of.and_then(|t| t.gflop_s)),
            real(run.run.bench.map(|bench| bench.roof.read_gb_s)),
            real(of.and_then(|t| t.pct_of_roof)),
            some(of.and_then(|t| t.void.as_ref())),
            int(run.run.plan(Arm::A).dispatches_per_token),
            int(run.checks.iter().filter(|check| check.passed).count() as u64),
            int(run.checks.iter().filter(|check| !check.passed).count() as u64),
            text(&model.id),
            text(model.honest_title()),
            text(model.weights),
            text(&model.weights_sha256),
            int(model.bytes_per_token),
            model.flops_per_token.map_or(Value::Null, int),
            text(&prompt.name),
            int(prompt.tokens),
            int(run.run.decode_tokens),
        ];
        row.extend(machine(&run.run.adapter, &run.run.environment));
        self.row("token_times", row)?;
        self.details(run, None)?;
        if of.is_some() {
            self.times(run)
        } else {
            Ok(())
        }
    }

    /// What ran, and what was compared with the reference.
    fn details(&self, run: &AbRun, summary: Option<&AbSummary>) -> Result<()> {
        let id = || text(&run.run.id);
        for (place, (arm, plan)) in run.run.plans().enumerate() {
            let at = summary.and_then(|s| s.arms.get(place));
            self.row(
                "arms",
                [
                    id(),
                    text(arm),
                    text(&plan.name),
                    int(plan.dispatches_per_token),
                    real(at.and_then(|arm| arm.decode_ms_per_token)),
                    real(at.and_then(|arm| arm.prefill_ms)),
                    real(at.and_then(|arm| arm.second_turn_ms)),
                    real(at.and_then(|arm| arm.dispatch_us)),
                ],
            )?;
            for (flag, value) in &plan.settings {
                self.row("settings", [id(), text(arm), text(flag), text(value)])?;
            }
            for (role, count) in &plan.by_role {
                self.row("dispatches", [id(), text(arm), text(role), int(*count)])?;
            }
            for (variant, sha256) in &plan.shaders {
                self.row("shaders", [id(), text(arm), text(variant), text(sha256)])?;
            }
        }
        for (name, value) in &run.run.adapter.limits {
            self.row("limits", [id(), text(name), int(*value)])?;
        }
        for check in &run.checks {
            self.row(
                "checks",
                [
                    id(),
                    text(check.arm),
                    text(&check.stage),
                    text(&check.role),
                    int(check.elements),
                    real(check.worst_abs),
                    real(check.worst_rel),
                    real(check.bound),
                    real(check.worst_ratio),
                    int(check.passed),
                    some(check.note.as_ref()),
                ],
            )?;
        }
        for quality in &run.quality {
            self.row(
                "qualities",
                [
                    id(),
                    text(quality.arm),
                    text(&quality.text),
                    int(quality.window),
                    int(quality.tokens),
                    real(quality.nll),
                ],
            )?;
        }
        Ok(())
    }

    fn head(
        &self,
        store: &Store,
        run: &AbRun,
        summary: std::result::Result<&AbSummary, &crate::summary::SummaryError>,
    ) -> Result<()> {
        let of = summary.ok();
        let reason = summary.map_or_else(ToString::to_string, |s| s.reason.clone());
        let ci = of.and_then(|s| s.ci_pct);
        if let Some(s) = of {
            let one = [(
                run.run.flag.clone(),
                s.verdict.map(|verdict| verdict.word()),
                s.effect_pct,
                s.ci_pct,
                s.mde_pct,
            )];
            let several = s.contrasts.iter().map(|c| {
                (
                    c.of.clone(),
                    Some(c.verdict),
                    c.effect_pct,
                    c.ci_pct,
                    c.mde_pct,
                )
            });
            let single = one.into_iter().filter(|_| s.contrasts.is_empty());
            for (name, verdict, effect, ci, mde) in single.chain(several) {
                self.row(
                    "effects",
                    [
                        text(&run.run.id),
                        text(name),
                        some(verdict),
                        real(effect),
                        real(ci.map(|[low, _]| low)),
                        real(ci.map(|[_, high]| high)),
                        real(mde),
                    ],
                )?;
            }
        }
        let published = of.and_then(|s| s.published.as_ref());
        let roof = run.run.publish.as_ref().map(|publish| publish.roof);
        for (number, replicate) in run.replicates.iter().enumerate() {
            let effects = published.map(|p| &p.replicate_effects_pct);
            self.row(
                "replicates",
                [
                    text(&run.run.id),
                    int(replicate.begin.index),
                    real(effects.and_then(|effects| effects.get(number).copied())),
                    real(replicate.begin.load),
                ],
            )?;
        }
        let (model, prompt) = (&run.run.model, &run.run.prompt);
        let mut row = vec![
            text(&run.run.id),
            text(run.journal.display()),
            text(&run.run.started_utc),
            text(&run.run.command),
            text(&run.run.flag),
            text(run.run.mode),
            text(run.status()),
            text(store.standing(&run.run.id)),
            text(run.run.metric),
            real(100.0 * run.run.margin),
            some(of.and_then(|s| s.verdict)),
            text(reason),
            real(of.and_then(|s| s.effect_pct)),
            real(ci.map(|[low, _]| low)),
            real(ci.map(|[_, high]| high)),
            real(of.and_then(|s| s.ci_level_pct)),
            real(of.and_then(|s| s.mde_pct)),
            real(of.and_then(|s| s.control.effect_pct)),
            real(of.and_then(|s| s.quality.as_ref()).map(|q| q.change_pct)),
            of.map_or(Value::Null, |s| int(s.blocks as u64)),
            published.map_or(Value::Null, |p| int(p.replicates as u64)),
            real(published.and_then(PublishedSummary::when_chosen_pct)),
            real(published.and_then(|p| p.pct_of_roof)),
            real(roof.map(|roof| roof.read_gb_s)),
            real(roof.map(|roof| roof.dispatch_us)),
            some(run.run.timer.as_ref().map(|timer| timer.name())),
            int(run.checks.iter().filter(|check| check.passed).count() as u64),
            int(run.checks.iter().filter(|check| !check.passed).count() as u64),
            text(&model.id),
            text(model.honest_title()),
            text(model.weights),
            text(&model.weights_sha256),
            int(model.parameters),
            int(model.bytes_per_token),
            model.flops_per_token.map_or(Value::Null, int),
            text(&prompt.name),
            int(prompt.tokens),
            int(run.run.decode_tokens),
            int(run.run.seed),
            real(run.run.budget_s),
        ];
        row.extend(machine(&run.run.adapter, &run.run.environment));
        self.row("runs", row)
    }

    fn times(&self, run: &AbRun) -> Result<()> {
        let id = || text(&run.run.id);
        for sample in &run.samples {
            let (block, position) = (int(sample.block), int(sample.position));
            self.row(
                "samples",
                [
                    id(),
                    block.clone(),
                    position.clone(),
                    text(sample.arm),
                    int(sample.tokens),
                    int(sample.dispatches),
                    int(sample.wall_ns),
                ],
            )?;
            for span in &sample.spans {
                self.row(
                    "spans",
                    [
                        id(),
                        block.clone(),
                        position.clone(),
                        int(span.context),
                        int(span.tokens),
                        int(span.wall_ns),
                    ],
                )?;
            }
        }
        for prefill in &run.prefills {
            self.row(
                "prefills",
                [
                    id(),
                    text(prefill.arm),
                    int(prefill.index),
                    int(prefill.tokens),
                    int(prefill.wall_ns),
                ],
            )?;
        }
        for replicate in &run.replicates {
            for sentinel in &replicate.sentinels {
                let row = [id(), int(sentinel.block), int(sentinel.wall_ns)];
                self.row("sentinels", row)?;
            }
        }
        for point in &run.context {
            self.row(
                "contexts",
                [
                    id(),
                    text(point.arm),
                    int(point.context),
                    int(point.tokens),
                    int(point.wall_ns),
                ],
            )?;
        }
        Ok(())
    }

    fn kernel_time(&self, sheet: &str, row: &KernelTime) -> Result<()> {
        let role = row
            .variant
            .parse::<Variant>()
            .map(|variant| variant.role.name());
        self.row(
            "kernel_times",
            [
                text(sheet),
                text(&row.model),
                text(&row.adapter),
                text(&row.driver),
                int(row.timestamps),
                text(&row.site),
                some(role.ok()),
                text(&row.variant),
                text(&row.shape),
                text(&row.mode),
                int(row.dispatches_per_token),
                int(row.weight_bytes),
                int(row.weight_sets),
                int(row.sample),
                int(row.dispatches),
                int(row.ns),
                row.weight_flops.map_or(Value::Null, int),
                real(row.roof_gb_s),
            ],
        )
    }

    fn checked_kernel(&self, sheet: &str, row: &CheckedKernel) -> Result<()> {
        self.row(
            "checked_kernels",
            [
                text(sheet),
                text(&row.adapter),
                text(&row.driver),
                int(row.seed),
                text(&row.shard),
                text(&row.variant),
                int(row.cases),
                int(row.passed),
                int(row.failed),
                int(row.skipped),
                text(&row.unrun),
            ],
        )
    }

    fn external(&self, record: &External) -> Result<()> {
        self.row(
            "external",
            [
                text(&record.id),
                text(record.kind.name()),
                text(&record.engine),
                some(record.engine_version.as_ref()),
                text(&record.source),
                some(record.source_sha256.as_ref()),
                text(&record.date),
                text(&record.hardware),
                some(record.backend.as_ref()),
                text(&record.model),
                some(record.quantisation.as_ref()),
                real(record.bytes_per_weight),
                some(record.prompt.as_ref()),
                record.prompt_tokens.map_or(Value::Null, int),
                record.decode_tokens.map_or(Value::Null, int),
                real(record.total_tok_s),
                real(record.ttft_ms),
                real(record.decode_tok_s),
                real(record.prefill_tok_s),
                some(record.statistic.as_ref()),
                some(record.pair.as_ref()),
                text(record.standing),
                some(record.why.as_ref()),
            ],
        )
    }
}

/// The last columns of a run.
fn machine(adapter: &Adapter, env: &Environment) -> Vec<Value> {
    vec![
        text(&adapter.name),
        text(&adapter.device_type),
        text(&adapter.backend),
        text(&adapter.driver_info),
        text(&env.os),
        text(&env.cpu),
        int(env.cores),
        int(env.memory_bytes),
        text(&env.commit),
        int(env.dirty),
        text(&env.toolchain),
        text(&env.runtime_checks),
    ]
}
