//! The report as one HTML page: no script, style, font or picture from elsewhere. `maud` escapes all that is put in.

use super::axes::{Axis, Value, contributions, geometric_mean};
use super::data::{Cell, FailureGroup, Measured, Report, order};
use super::regret::{Summary, remark, verdict};
use super::searched;
use super::{heat_map, roofline, two_digits};
use crate::gpu::GpuState;
use indicatif::{HumanBytes, HumanCount};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use nvkv_db::{PredictedWinner, Regret, Run};
use nvkv_spec::{GpuEnvironment, Operation, Shape};
use serde::Deserialize;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Near ties named in a row before the rest is folded away.
const TIES_SHOWN: usize = 3;

/// The whole page. `database` and `made_at` (UTC) are said at its end.
pub fn page(report: &Report, database: &str, made_at: &str) -> String {
    let title = title(report);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#top" { "Skip to the report" }
                (navigation(report))
                main #top tabindex="-1" {
                    h1 { (title) }
                    @for (i, m) in report.measured.iter().enumerate() { (of_measured(i, m, report)) }
                    @if !report.predicted.is_empty() { (of_predicted(&report.predicted)) }
                    (of_failures(report))
                    (of_environment(report))
                    footer { "nvkv-tune " (env!("CARGO_PKG_VERSION")) ", from " code { (database) } ", " (made_at) }
                }
                div #tip role="presentation" hidden {}
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

fn title(report: &Report) -> String {
    let mut places: Vec<String> =
        report.measured.iter().map(|m| format!("{} ({})", m.environment.name, m.target)).collect();
    let mut predicted: Vec<String> =
        report.predicted.iter().map(|p| format!("{} (predicted)", p.kernel.target)).collect();
    predicted.dedup();
    places.append(&mut predicted);
    places.dedup();
    format!("Tuned attention kernels: {}", places.join(", "))
}

fn navigation(report: &Report) -> Markup {
    let link = |to: String, text: &str| html! { a href=(to) { (text) } };
    html! {
        nav aria-label="Sections" {
            div.links {
                @for (i, m) in report.measured.iter().enumerate() {
                    @if report.measured.len() > 1 { span.place { (m.target) " " (m.environment.driver) } }
                    (link(format!("#roofline-{i}"), "Roofline"))
                    (link(format!("#heat-{i}"), "Heat map"))
                    (link(format!("#winners-{i}"), "Winners"))
                    (link(format!("#axes-{i}"), "Axes"))
                    (link(format!("#ties-{i}"), "Near ties"))
                    @if !m.regrets.is_empty() { (link(format!("#regret-{i}"), "Regret")) }
                }
                @if !report.predicted.is_empty() { (link("#predicted".into(), "Predicted")) }
                (link("#failures".into(), "Failures"))
                (link("#environment".into(), "Environment"))
            }
            button #theme type="button" aria-pressed="false" { "Dark" }
        }
    }
}

fn of_measured(i: usize, m: &Measured, report: &Report) -> Markup {
    let GpuEnvironment { name, driver, .. } = &m.environment;
    html! {
        p.lead {
            b { (name) } ", driver " (driver) ", target " (m.target) ". Verified against a float64 reference, then timed: "
            "the median of single calls, L2 cold, replayed from a CUDA graph. Bytes are K, V and their scales, each once."
        }
        @if let Some(searched) = guided(m) {
            p.lead { (searched) " What each axis gave, and what comes near, is known of what it timed alone." }
        }
        (tiles(m, report))
        (section(&format!("roofline-{i}"), "Roofline", html! {
            p { "Each dot is a winner: the bytes that its call must move, and how fast it moved them. Curves are equal times; "
                "each meets the ceiling at the bytes that could be read in that time. Far below the ceiling on the left, a "
                "call is bound by its latency, not by memory. Choose a dot to see its row." }
            (roofline::plots(i, m))
        }))
        (section(&format!("heat-{i}"), "Batch × context", heat_map::tables(m)))
        (winners(i, m))
        (axes(i, m))
        (near_ties(i, m))
        @if !m.regrets.is_empty() { (regrets(i, m)) }
    }
}

fn guided(m: &Measured) -> Option<String> {
    searched(m.cells.iter().map(|cell| cell.winner.search.as_str()))
}

fn section(id: &str, title: &str, content: Markup) -> Markup {
    html! { section id=(id) aria-labelledby=(format!("{id}-title")) { h2 id=(format!("{id}-title")) { (title) } (content) } }
}

/// Figures that sum a GPU up.
fn tiles(m: &Measured, report: &Report) -> Markup {
    let attends = |cell: &&Cell| cell.problem().operation() != Operation::Append;
    let mut shares: Vec<f64> = m.cells.iter().filter(attends).filter_map(|cell| cell.winner.ceiling_share()).collect();
    shares.sort_by(f64::total_cmp);
    let near = shares.iter().filter(|share| **share >= 0.9).count();
    let beaten = m.cells.iter().filter(|cell| cell.winner.default.is_some_and(|d| d.beaten));
    let gains = beaten.clone().filter_map(|cell| Some(cell.winner.default?.median_us / cell.winner.times.median_us));
    let gain = geometric_mean(gains);
    let mut problems: Vec<_> = m.cells.iter().map(|cell| cell.problem().key()).collect();
    problems.dedup();
    let timed: usize = m.cells.iter().map(|cell| cell.candidates.len()).sum();
    let failed: usize = report.failures.iter().filter(|f| f.target == m.target).map(|f| f.count).sum();
    let tile = |value: String, what: String| html! { div.tile { div.value { (value) } div.what { (what) } } };
    html! {
        div.tiles {
            @if let Some(ceiling) = m.ceiling_gbps {
                (tile(format!("{ceiling:.0} GB/s"), "read ceiling, by a plain read kernel".into()))
            }
            @if let Some(median) = shares.get(shares.len() / 2) {
                (tile(percent(*median), "of it, the median winner of decode and fused".into()))
                (tile(format!("{near} of {}", shares.len()), "decode and fused winners at 90 % of it or more".into()))
            }
            (tile(format!("{} of {}", beaten.count(), m.cells.len()),
                gain.map_or("winners faster than the default beyond noise".into(),
                    |gain| format!("winners faster than the default beyond noise, {gain:.2}× on average"))))
            (tile(HumanCount(timed as u64).to_string(), format!("launches timed, of {} problems", problems.len())))
            (tile(HumanCount(failed as u64).to_string(), "trials failed".into()))
        }
    }
}

/// A header cell that sorts.
fn sortable(text: &str, class: &str) -> Markup {
    html! { th scope="col" class=(class) { button type="button" { (text) span.arrow aria-hidden="true" {} } } }
}

fn winners(i: usize, m: &Measured) -> Markup {
    let id = format!("winners-{i}");
    let mut shapes: Vec<_> = m.cells.iter().map(|cell| order(&cell.winner.shape)).collect();
    shapes.sort();
    shapes.dedup();
    section(
        &id,
        "Winners",
        html! {
            (filter(&format!("{id}-table"), m.cells.len()))
            (scroll("Winners", html! {
                table.sortable id=(format!("{id}-table")) {
                    thead { tr {
                        (sortable("Problem", "")) (sortable("Shape", "")) (sortable("Winner", "")) (sortable("Split", ""))
                        (sortable("µs", "n")) (sortable("± IQR", "n")) (sortable("GB/s", "n")) (sortable("Ceiling", "n"))
                        (sortable("vs default", "n")) (sortable("Near ties", "n")) (sortable("Regs", "n"))
                    } }
                    tbody {
                        @for (row, cell) in m.cells.iter().enumerate() { (winner(&format!("row-{i}-{row}"), cell, &shapes)) }
                    }
                }
            }))
        },
    )
}

fn winner(id: &str, cell: &Cell, shapes: &[(u32, u32, u32, bool)]) -> Markup {
    let w = &cell.winner;
    let place = shapes.iter().position(|shape| *shape == order(&w.shape));
    let share = w.ceiling_share();
    let speedup = w.default.map(|d| d.median_us / w.times.median_us);
    let ties = cell.near_ties().count();
    let registers = w.kernel.compiled.as_ref().map(|compiled| compiled.facts.registers);
    let spread = w.times.iqr_us / w.times.median_us;
    html! {
        tr id=(id) {
            td.name { (breakable(&cell.problem().key())) }
            td.narrow data-v=[place] { (breakable(&w.shape.key())) }
            td.name { (breakable(&w.kernel.variant.key())) }
            td.narrow { @if let Some(split) = w.split { (breakable(&split.to_string())) } @else { "–" } }
            td.n data-v=(w.times.median_us) { (micros(w.times.median_us)) }
            td.n.quiet data-v=(spread) { (percent_1(spread)) }
            td.n data-v=(w.gbps()) { (format!("{:.0}", w.gbps())) }
            td.n.share data-v=[share] {
                @if let Some(share) = share {
                    span.bar aria-hidden="true" { span style=(format!("width:{:.1}%", 100.0 * share.min(1.0))) {} }
                    (percent(share))
                } @else { "–" }
            }
            td.n data-v=[speedup] { (against_default(cell, speedup)) }
            td.n data-v=(ties) { (ties) }
            td.n data-v=[registers] { (registers.map_or("–".into(), |n| n.to_string())) }
        }
    }
}

fn against_default(cell: &Cell, speedup: Option<f64>) -> Markup {
    match (cell.winner.is_default, speedup, cell.winner.default) {
        (true, ..) => html! { span.quiet { "default" } },
        (_, Some(speedup), Some(default)) if default.beaten => html! { (format!("{speedup:.2}×")) },
        (_, Some(speedup), _) => html! { span.quiet { (format!("{speedup:.2}× tie")) } },
        _ => html! { "–" },
    }
}

fn filter(table: &str, rows: usize) -> Markup {
    html! {
        p.controls {
            label { "Rows with " input type="search" data-table=(table) placeholder="decode exact b64" autocomplete="off"; }
            output { (rows) " rows" }
        }
    }
}

/// A wide table scrolls by itself, with the keyboard too.
fn scroll(label: &str, content: Markup) -> Markup {
    html! { div.scroll.tall role="region" aria-label=(label) tabindex="0" { (content) } }
}

fn axes(i: usize, m: &Measured) -> Markup {
    let of = |append: bool| {
        let cells = m.cells.iter().filter(move |c| (c.problem().operation() == Operation::Append) == append);
        contributions(m, cells)
    };
    section(
        &format!("axes-{i}"),
        "What each axis gave",
        html! {
            p { "The best time with an axis held at one value, over the best time of all: geometric mean (bar) over the problems "
                "and shapes at which the value was timed, and the worst of them (tick). 1.00× costs nothing." }
            @for (title, axes) in [("Decode and fused", of(false)), ("Append", of(true))] {
                @if !axes.is_empty() {
                    h3 { (title) }
                    div.axes { @for axis in &axes { (axis_table(axis)) } }
                }
            }
        },
    )
}

/// The bars of an axis end at twice the best time.
fn axis_table(axis: &Axis) -> Markup {
    let width = |ratio: f64| format!("{:.1}%", 100.0 * (ratio - 1.0).clamp(0.0, 1.0));
    let row = |value: &Value| {
        html! {
            tr {
                th scope="row" { (value.name) }
                td.bars { div.track aria-hidden="true" {
                    div.mean style=(format!("width:{}", width(value.slowdown))) {}
                    div.worst style=(format!("left:{}", width(value.worst))) {}
                } }
                td.n { (format!("{:.2}×", value.slowdown)) }
                td.n.quiet { (format!("{:.2}×", value.worst)) }
                td.n { (value.wins) span.quiet { "/" (value.cells) } }
            }
        }
    };
    html! {
        table.axis {
            caption { (axis.name) }
            thead { tr { th scope="col" { "value" } th scope="col" { span.visually-hidden { "bars, from 1× to 2×" } }
                th.n scope="col" { "mean" } th.n scope="col" { "worst" } th.n scope="col" { "wins" } } }
            tbody { @for value in &axis.values { (row(value)) } }
        }
    }
}

fn near_ties(i: usize, m: &Measured) -> Markup {
    let id = format!("ties-{i}");
    let tied: Vec<_> = m.cells.iter().filter(|cell| cell.near_ties().next().is_some()).collect();
    section(
        &id,
        "Near ties",
        html! {
            p { (tied.len()) " of " (m.cells.len()) " winners have launches beside them that another tune of the same thing might find "
                "to win, by the samples and their rounds." }
            @if !tied.is_empty() {
                (filter(&format!("{id}-table"), tied.len()))
                (scroll("Near ties", html! {
                    table.sortable id=(format!("{id}-table")) {
                        thead { tr { (sortable("Problem", "")) (sortable("Shape", "")) (sortable("µs", "n")) (sortable("Near ties", "n"))
                            (sortable("Timed", "n")) th scope="col" { "They are, over the winner" } } }
                        tbody { @for (place, cell) in tied.iter().enumerate() { (tie(place, cell)) } }
                    }
                }))
            }
        },
    )
}

fn tie(place: usize, cell: &Cell) -> Markup {
    let best = cell.winner.times.median_us;
    let ties: Vec<_> = cell.near_ties().collect();
    let line = |at: usize| {
        let candidate = ties[at];
        let split = candidate.trial.record.split.map_or(String::new(), |split| format!(" {split}"));
        html! { li { (format!("+{:.1} % ", 100.0 * (candidate.times.median_us / best - 1.0)))
        span.name { (breakable(&candidate.trial.record.kernel.variant.key())) (split) } } }
    };
    let shown = ties.len().min(TIES_SHOWN);
    html! {
        tr {
            td.name { (breakable(&cell.problem().key())) }
            td.nowrap data-v=(place) { (cell.winner.shape.key()) }
            td.n data-v=(best) { (micros(best)) }
            td.n data-v=(ties.len()) { (ties.len()) }
            td.n data-v=(cell.candidates.len()) { (cell.candidates.len()) }
            td {
                ul.ties { @for at in 0..shown { (line(at)) } }
                @if ties.len() > shown {
                    details { summary { (ties.len() - shown) " more" } ul.ties { @for at in shown..ties.len() { (line(at)) } } }
                }
            }
        }
    }
}

/// What the winners cost where they serve other shapes.
fn regrets(i: usize, m: &Measured) -> Markup {
    let id = format!("regret-{i}");
    let summary = Summary::new(m.cells.iter().map(|cell| &cell.winner), &m.regrets);
    section(
        &id,
        "Regret",
        html! {
            p { "A tuned shape is a bucket: its winner serves every shape that is nearer to it than to another one. Where two "
                "buckets meet, their winners were timed beside those of the buckets nearby and the default; regret is the time "
                "over the best of these, less one. A bucket with more than 5 % is split there. " (summary.text()) "." }
            (filter(&format!("{id}-table"), m.regrets.len()))
            (scroll("Regret", html! {
                table.sortable id=(format!("{id}-table")) {
                    thead { tr {
                        (sortable("Problem", "")) (sortable("Bucket", "")) (sortable("At", "")) (sortable("Its winner, µs", "n"))
                        (sortable("Best, µs", "n")) (sortable("Regret", "n")) (sortable("Verdict", ""))
                    } }
                    tbody { @for (place, regret) in m.regrets.iter().enumerate() { (regret_row(place, regret)) } }
                }
            }))
        },
    )
}

fn regret_row(place: usize, regret: &Regret) -> Markup {
    let Regret { problem, bucket, shape, winner, best, .. } = regret;
    html! {
        tr {
            td.name { (breakable(&problem.key())) }
            td.narrow data-v=(place) { (breakable(&bucket.key())) }
            td.narrow data-v=(place) { (breakable(&shape.key())) }
            td.n data-v=(winner.times.median_us) { (micros(winner.times.median_us)) }
            td.n data-v=(best.times.median_us) { (micros(best.times.median_us)) }
            td.n data-v=(regret.share()) { (percent_1(regret.share())) }
            td { (verdict(regret)) span.quiet { (remark(regret)) } }
        }
    }
}

/// Predictions stand apart, and in no chart.
fn of_predicted(predicted: &[PredictedWinner]) -> Markup {
    section(
        "predicted",
        "Predicted",
        html! {
            div.predicted {
                p { strong.badge { "PREDICTED" } " Nothing here was timed: kernels were compiled, and a model orders them. Run the same "
                    "command on a machine with such a GPU to measure them." }
                (filter("predicted-table", predicted.len()))
                (scroll("Predicted", html! {
                    table.sortable #predicted-table {
                        thead { tr { (sortable("Target", "")) (sortable("Problem", "")) (sortable("Shape", "")) (sortable("First by the model", ""))
                            (sortable("Split", "")) (sortable("PREDICTED µs", "n")) (sortable("Checked", "")) } }
                        tbody { @for (place, p) in predicted.iter().enumerate() { tr {
                            td { (p.kernel.target) }
                            td.name { (breakable(&p.kernel.problem.key())) }
                            td.nowrap data-v=(place) { (p.shape.key()) }
                            td.name { (breakable(&p.kernel.variant.key())) }
                            td.nowrap { (p.split.map_or("–".into(), |split| split.to_string())) }
                            td.n data-v=(p.predicted_us) { "about " (two_digits(p.predicted_us)) }
                            td { @match p.emulated { Some(e) => { "emulated, " (e.cases) " cases" } None => "compiled only" } }
                        } } }
                    }
                }))
            }
        },
    )
}

fn of_failures(report: &Report) -> Markup {
    let failed: usize = report.failures.iter().map(|failure| failure.count).sum();
    let row = |failure: &FailureGroup| {
        html! {
            tr {
                td { (failure.target) }
                td { (failure.kind.replace('_', " ")) }
                td.wrap { (failure.reason) }
                td.n data-v=(failure.count) { (failure.count) }
                td.name { (breakable(&failure.example)) }
            }
        }
    };
    section(
        "failures",
        "Failures",
        html! {
            p { (HumanCount(failed as u64)) " of " (HumanCount(report.trials as u64)) " trials failed." }
            @if failed > 0 {
                (scroll("Failures", html! {
                    table.sortable {
                        thead { tr { (sortable("Target", "")) (sortable("Kind", "")) (sortable("Reason", "")) (sortable("Trials", "n"))
                            (sortable("One of them", "")) } }
                        tbody { @for failure in &report.failures { (row(failure)) } }
                    }
                }))
            }
        },
    )
}

/// The GPU's state as a run stores it.
#[derive(Deserialize)]
struct States {
    before: GpuState,
    after: GpuState,
}

fn of_environment(report: &Report) -> Markup {
    section(
        "environment",
        "Environment",
        html! {
            @for m in &report.measured { (board(m)) }
            h3 { "Runs" }
            div.runs { @for run in &report.runs { (of_run(run)) } }
        },
    )
}

fn board(m: &Measured) -> Markup {
    let GpuEnvironment { name, uuid, capability, sms, l2_bytes, memory_bytes, driver, max_sm_clock, max_memory_clock } =
        &m.environment;
    html! {
        h3 { (name) }
        dl {
            dt { "target" } dd { (m.target) ", compute capability " (capability.0) "." (capability.1) }
            dt { "SMs" } dd { (sms) }
            dt { "memory" } dd { (HumanBytes(*memory_bytes)) ", L2 " (HumanBytes(*l2_bytes)) }
            dt { "highest clocks" } dd { "SM " (max_sm_clock) " MHz, memory " (max_memory_clock) " MHz" }
            dt { "driver" } dd { (driver) }
            dt { "board" } dd.name { (uuid) }
        }
    }
}

fn of_run(run: &Run) -> Markup {
    let start = &run.start;
    let states = run.gpu_state.clone().and_then(|state| serde_json::from_value::<States>(state).ok());
    html! {
        dl {
            dt { "started" } dd { (start.started_at) @match &run.finished_at {
                Some(end) => { ", ended " (end) } None => { ", not ended: it runs, or was killed" } } }
            dt { "command" } dd { code { (start.command) } }
            dt { "preset" } dd { (start.preset) }
            dt { "search" } dd { (start.search) }
            dt { "versions" } dd { "nvkv " (start.generator) ", NVRTC " (start.nvrtc) @if let Some(e) = &start.environment { ", driver " (e.driver) } }
            @if let Some(policy) = &start.measurement_policy { dt { "measured by" } dd { (policy) } }
            @if let Some(ceiling) = run.read_ceiling_gbps { dt { "read ceiling" } dd { (format!("{ceiling:.0} GB/s")) } }
            @if let Some(States { before, after }) = &states {
                dt { "GPU before" } dd { (state(before)) }
                dt { "GPU after" } dd { (state(after)) }
            }
        }
    }
}

fn state(state: &GpuState) -> String {
    let known = [
        state.sm_clock.map(|mhz| format!("SM {mhz} MHz")),
        state.memory_clock.map(|mhz| format!("memory {mhz} MHz")),
        state.temperature.map(|celsius| format!("{celsius} °C")),
        state.power.map(|watts| format!("{watts:.0} W")),
        state.ecc.map(|on| format!("ECC {}", if on { "on" } else { "off" })),
        state.mig.filter(|on| *on).map(|_| "MIG on".into()),
        state.other_processes.map(|n| format!("{n} other processes")),
        Some(match state.throttle_reasons.as_slice() {
            [] => "not throttled".into(),
            reasons => format!("clocks held down by {}", reasons.join(", ")),
        }),
    ];
    known.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A long name that may be broken after its dashes.
pub fn breakable(name: &str) -> Markup {
    html! { @for part in name.split_inclusive('-') { (part) wbr; } }
}

/// A time in µs to three digits or more.
pub fn micros(us: f64) -> String {
    if us < 10.0 { format!("{us:.2}") } else { format!("{us:.1}") }
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    if share < 0.0005 {
        "< 0.1 %".into()
    } else if share < 0.095 {
        percent_1(share)
    } else {
        format!("{:.0} %", 100.0 * share)
    }
}

fn percent_1(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Bytes in powers of 1000, as bandwidths are.
pub fn bytes(n: f64) -> String {
    let (unit, name) =
        [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")].into_iter().find(|(unit, _)| n >= *unit).unwrap_or((1.0, "B"));
    let value = n / unit;
    if value < 10.0 && value.fract() > 0.05 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
}

/// A shape in words.
pub fn words(shape: &Shape) -> String {
    match shape {
        Shape::Decode { batch, .. } => format!("batch {batch}, context {}", heat_map::context(shape)),
        Shape::Append { tokens, .. } => format!("{tokens} new tokens"),
    }
}
