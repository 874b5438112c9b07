//! Single kernels: how fast each reads its weights, and where a token's time goes.

use std::collections::BTreeMap;

use kernels::Variant;
use results::roof;
use results::sheet::KernelTime;
use results::stats::median;
use results::store::Store;

use crate::Result;
use crate::doc::{Doc, Picture};
use crate::svg::{Anchor, Marker, SERIES, Scale, Svg, WIDTH, tick_label};
use crate::text::{code, or_none};

/// One site of a token with the median times of its dispatches.
struct Site<'s> {
    row: &'s KernelTime,
    role: &'static str,
    /// Microseconds of a dispatch by mode, void ones left out.
    us: BTreeMap<&'s str, f64>,
    /// Why a mode is void or suspicious.
    notes: Vec<String>,
}

impl Site<'_> {
    /// Gigabytes of weights a second; none without weights.
    fn gb_s(&self, mode: &str) -> Option<f64> {
        let bytes = self.row.weight_bytes as f64;
        (bytes > 0.0).then(|| Some(bytes / self.us.get(mode)? / 1e3))?
    }

    /// Operations with weights a second, 10^9; none without weights or their count.
    fn gflop_s(&self, mode: &str) -> Option<f64> {
        let flops = self.row.weight_flops.filter(|&flops| flops > 0)? as f64;
        Some(flops / self.us.get(mode)? / 1e3)
    }

    /// Microseconds of all its dispatches in a token, each waiting for the one before.
    fn token_us(&self) -> Option<f64> {
        let us = self.us.get(DEPENDENT).or_else(|| self.us.get(COLD))?;
        Some(us * self.row.dispatches_per_token as f64)
    }

    /// Leaves out what the roof makes void. A warm rate may be past it.
    fn judge(&mut self, roof_gb_s: f64) {
        for mode in [COLD, DEPENDENT] {
            let Some(gb_s) = self.gb_s(mode) else {
                continue;
            };
            if let Some(void) = roof::past(gb_s, roof_gb_s) {
                self.us.remove(mode);
                self.notes.push(format!("{}: {void}", named(mode)));
            } else if mode == COLD {
                self.notes.extend(roof::far_below(gb_s, roof_gb_s));
            }
        }
    }
}

const COLD: &str = "cold";
const DEPENDENT: &str = "cold_dependent";

/// What a mode's times are, as the page calls them.
fn named(mode: &str) -> &'static str {
    if mode == DEPENDENT {
        "in a chain"
    } else {
        "throughput"
    }
}

/// A section for each sheet.
pub(super) fn sections(doc: &mut Doc, store: &Store) -> Result<()> {
    let mut sheets: BTreeMap<&str, Vec<&KernelTime>> = BTreeMap::new();
    for (sheet, row) in &store.kernel_times {
        sheets.entry(sheet).or_default().push(row);
    }
    if sheets.is_empty() {
        return Ok(());
    }
    doc.heading("Single kernels: no claims");
    doc.text(
        "Each sheet was measured in one process, by `bench --kernels`, from weights that no cache \
         holds. Throughput is of dispatches that do not wait for each other, latency of a chain; \
         a token is a chain.",
    );
    for (sheet, rows) in sheets {
        let first = rows[0];
        let (model, adapter) = (&first.model, &first.adapter);
        let own = first.roof_gb_s.map(|gb_s| (gb_s, None));
        let roof = own.or_else(|| of_a_run(store, adapter));
        let mut sites = sites(&rows)?;
        if let Some((gb_s, _)) = roof {
            sites.iter_mut().for_each(|site| site.judge(gb_s));
        }
        doc.below(format!("{model} on {adapter}: {sheet}"));
        let clock = if first.timestamps {
            "GPU timestamps, which passed a test of known work"
        } else {
            "the wall clock"
        };
        doc.text(format!(
            "Driver {}; timed by {clock}; {}.",
            first.driver,
            match roof {
                None => "no read roof of this adapter is recorded".to_owned(),
                Some((roof, None)) => format!("read roof {roof:.1} GB/s, measured before"),
                Some((roof, Some(run))) => format!("read roof {roof:.1} GB/s, of run {run}"),
            }
        ));
        doc.picture(roofline(
            sheet,
            model,
            adapter,
            &sites,
            roof.map(|(gb_s, _)| gb_s),
        ));
        doc.picture(shares(sheet, model, adapter, &sites));
        doc.table(
            &[
                "site",
                "variant",
                "matrix",
                "dispatches per token",
                "\u{b5}s",
                "GB/s",
                "GFLOP/s",
                "% of roof",
                "\u{b5}s in a chain",
                "% of the token",
                "note",
            ],
            3,
            table(&sites, roof.map(|(gb_s, _)| gb_s)),
        );
    }
    Ok(())
}

/// The newest read roof that a run recorded on an adapter, with the run.
fn of_a_run<'s>(store: &'s Store, adapter: &str) -> Option<(f64, Option<&'s str>)> {
    let runs = store
        .runs
        .iter()
        .filter(|run| run.run.adapter.name == adapter);
    let newest = runs
        .filter_map(|run| Some((run, super::roof(run)?)))
        .max_by_key(|(run, _)| &run.run.started_utc);
    newest.map(|(run, roof)| (roof.read_gb_s, Some(run.run.id.as_str())))
}

fn sites<'s>(rows: &[&'s KernelTime]) -> Result<Vec<Site<'s>>> {
    let mut samples: Vec<(&'s KernelTime, BTreeMap<&'s str, Vec<f64>>)> = Vec::new();
    for &row in rows {
        let same = |(other, _): &&mut (&KernelTime, _)| {
            (&other.site, &other.variant, &other.shape) == (&row.site, &row.variant, &row.shape)
        };
        let us = row.ns as f64 / row.dispatches as f64 / 1e3;
        match samples.iter_mut().find(same) {
            Some((_, modes)) => modes.entry(&row.mode).or_default().push(us),
            None => samples.push((row, BTreeMap::from([(row.mode.as_str(), vec![us])]))),
        }
    }
    let mut sites = Vec::new();
    for (row, modes) in samples {
        let mut us = BTreeMap::new();
        for (mode, values) in modes {
            us.insert(mode, median(&values)?);
        }
        let variant = row.variant.parse::<Variant>();
        let role = variant.map_or("other", |variant| variant.role.name());
        sites.push(Site {
            row,
            role,
            us,
            notes: vec![],
        });
    }
    Ok(sites)
}

fn table(sites: &[Site<'_>], roof: Option<f64>) -> Vec<Vec<String>> {
    let token = token_us(sites);
    sites
        .iter()
        .map(|site| {
            let us = |mode: &str| or_none(site.us.get(mode), |us| format!("{us:.2}"));
            let gb_s = site.gb_s(COLD);
            vec![
                code(&site.row.site),
                code(&site.row.variant),
                or_none(
                    Some(&site.row.shape).filter(|s| !s.is_empty()),
                    Clone::clone,
                ),
                site.row.dispatches_per_token.to_string(),
                us(COLD),
                or_none(gb_s, |gb_s| format!("{gb_s:.0}")),
                or_none(site.gflop_s(COLD), |gflop_s| format!("{gflop_s:.0}")),
                or_none(gb_s.zip(roof), |(gb_s, roof)| {
                    format!("{:.1}", 100.0 * gb_s / roof)
                }),
                us(DEPENDENT),
                or_none(site.token_us().zip(token), |(us, token)| {
                    format!("{:.1}", 100.0 * us / token)
                }),
                or_none(
                    Some(site.notes.join("; ")).filter(|s| !s.is_empty()),
                    |notes| notes,
                ),
            ]
        })
        .collect()
}

/// Microseconds of a token; none where a site of it has no time.
fn token_us(sites: &[Site<'_>]) -> Option<f64> {
    let times: Option<Vec<f64>> = sites.iter().map(Site::token_us).collect();
    times.map(|times| times.iter().sum())
}

/// Rate of reading weights against the bytes of one dispatch.
fn roofline(
    sheet: &str,
    model: &str,
    adapter: &str,
    sites: &[Site<'_>],
    roof: Option<f64>,
) -> Option<Picture> {
    let with_weights: Vec<&Site<'_>> = (sites.iter())
        .filter(|site| site.gb_s(COLD).or(site.gb_s(DEPENDENT)).is_some())
        .collect();
    let rates = || {
        let rates = with_weights
            .iter()
            .flat_map(|site| [site.gb_s(COLD), site.gb_s(DEPENDENT)]);
        rates.flatten().chain(roof)
    };
    let bytes = || with_weights.iter().map(|site| site.row.weight_bytes as f64);
    if with_weights.is_empty() {
        return None;
    }
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        (low / 1.6, high * 1.6)
    };
    let title = format!("{model} on {adapter}: weights read by each kernel");
    let legend = 26.0 * with_weights.len().div_ceil(2) as f64;
    let (top, height) = (76.0 + legend, 270.0);
    let x = Scale::log(range(&mut bytes()), (64.0, WIDTH - 20.0));
    let y = Scale::log(range(&mut rates()), (top + height, top));
    let mut svg = Svg::new(top + height + 58.0, &title);
    for tick in x.ticks(7) {
        svg.line("faint thin", (x.at(tick), top), (x.at(tick), top + height));
        svg.text(
            (x.at(tick), top + height + 18.0),
            Anchor::Middle,
            "ink",
            &tick_label(tick),
        );
    }
    for tick in y.ticks(7) {
        svg.line("faint thin", (64.0, y.at(tick)), (WIDTH - 20.0, y.at(tick)));
        svg.text(
            (58.0, y.at(tick) + 5.0),
            Anchor::End,
            "ink",
            &tick_label(tick),
        );
    }
    svg.text(
        (WIDTH / 2.0 + 20.0, top + height + 44.0),
        Anchor::Middle,
        "ink",
        "bytes of weights read by one dispatch",
    );
    svg.upright((18.0, top + height / 2.0), "ink", "GB/s");
    if let Some(roof) = roof {
        let at = y.at(roof);
        svg.line("red dashed", (64.0, at), (WIDTH - 20.0, at));
        svg.text(
            (70.0, at - 7.0),
            Anchor::Start,
            "red",
            &format!("read roof {roof:.0} GB/s"),
        );
    }
    svg.text(
        (20.0, 66.0),
        Anchor::Start,
        "grey",
        "upper end: throughput; lower end (bar): in a chain",
    );
    for (at, site) in with_weights.iter().enumerate() {
        let look = SERIES[at % SERIES.len()];
        let key = (
            26.0 + (at % 2) as f64 * (WIDTH / 2.0 - 10.0),
            84.0 + 26.0 * (at / 2) as f64,
        );
        svg.marker(look, key, "");
        let shape = &site.row.shape;
        let name = format!("{}, {}", site.row.site, shape.replace(" x ", "\u{d7}"));
        svg.text((key.0 + 12.0, key.1 + 5.0), Anchor::Start, "ink", &name);
        let across = x.at(site.row.weight_bytes as f64);
        let hover = |what: &str, mode: &str| {
            let us = site.us.get(mode).copied().unwrap_or(f64::NAN);
            let rate = site.gb_s(mode).unwrap_or(f64::NAN);
            format!(
                "{} ({}): {us:.2} \u{b5}s, {rate:.0} GB/s, {what}",
                site.row.site, site.row.variant
            )
        };
        if let (Some(cold), Some(chain)) = (site.gb_s(COLD), site.gb_s(DEPENDENT)) {
            let (above, below) = (y.at(cold), y.at(chain));
            svg.line(look.0, (across, above), (across, below));
            svg.line(look.0, (across - 5.0, below), (across + 5.0, below));
            svg.marker(
                (look.0, Marker::Bar),
                (across, below),
                &hover("in a chain", DEPENDENT),
            );
        }
        if let Some(rate) = site.gb_s(COLD) {
            svg.marker(look, (across, y.at(rate)), &hover("throughput", COLD));
        }
    }
    Some(Picture {
        file: format!("roofline-{sheet}.svg"),
        alt: title,
        caption: "Each marker is a kernel of a decoded token: how fast it reads its weights, \
                  against how many bytes one dispatch reads, both by powers of ten. The bar below \
                  is the same kernel where each dispatch waits for the one before."
            .to_owned(),
        svg,
    })
}

/// Where the time of a token goes, by role.
fn shares(sheet: &str, model: &str, adapter: &str, sites: &[Site<'_>]) -> Option<Picture> {
    let mut by_role: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
    let token = token_us(sites).filter(|&token| token > 0.0)?;
    for site in sites {
        let (us, count) = by_role.entry(site.role).or_default();
        *us += site.token_us()?;
        *count += site.row.dispatches_per_token;
    }
    let mut roles: Vec<_> = by_role.into_iter().collect();
    roles.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let title = format!(
        "{model} on {adapter}: shares of a decoded token's {:.2} ms",
        token / 1e3
    );
    let (top, row) = (60.0, 40.0);
    let mut svg = Svg::new(top + row * roles.len() as f64 + 10.0, &title);
    let most = roles[0].1.0;
    for (at, (role, (us, count))) in roles.iter().enumerate() {
        let y = top + row * at as f64;
        let share = 100.0 * us / token;
        svg.text((20.0, y + 10.0), Anchor::Start, "ink", role);
        svg.text(
            (WIDTH - 20.0, y + 10.0),
            Anchor::End,
            "ink",
            &format!("{share:.1} %, {}", dispatches(*count)),
        );
        svg.rect(
            "blue",
            (20.0, y + 16.0),
            ((WIDTH - 40.0) * us / most, 12.0),
            &format!(
                "{role}: {us:.1} \u{b5}s of a token, {share:.1} %, in {}",
                dispatches(*count)
            ),
        );
    }
    Some(Picture {
        file: format!("shares-{sheet}.svg"),
        alt: title,
        caption: "Median time of one dispatch in a chain, times the dispatches of a token. The \
                  whole is the sum of these, not the time of a token as it was decoded."
            .to_owned(),
        svg,
    })
}

fn dispatches(count: u64) -> String {
    let s = if count == 1 { "" } else { "es" };
    format!("{count} dispatch{s}")
}
