//! Bytes of a call against the bandwidth it reached, under the read ceiling: the roofline of kernels whose arithmetic
//! intensity is fixed by their problem, so that bytes, not intensity, is what tells their launches apart.

use super::data::{Cell, Measured};
use super::page::{bytes, micros, percent, words};
use maud::{Markup, html};
use nvkv_spec::{Operation, Problem};
use std::collections::BTreeSet;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 460.0;
/// Left, right, top and bottom of the plot's area.
const AREA: (f64, f64, f64, f64) = (62.0, 950.0, 46.0, 408.0);
/// Times of the curves, µs.
const TIMES: [f64; 13] = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4];
/// Colours that the style sheet has; later series use them again.
const COLOURS: usize = 8;

/// From data to the picture. The axis of bytes is logarithmic.
struct Scale {
    low: f64,
    high: f64,
    top: f64,
}

impl Scale {
    fn x(&self, bytes: f64) -> f64 {
        let (left, right, ..) = AREA;
        left + (right - left) * (bytes / self.low).ln() / (self.high / self.low).ln()
    }

    fn y(&self, gbps: f64) -> f64 {
        let (.., top, bottom) = AREA;
        bottom - (bottom - top) * gbps / self.top
    }
}

/// What a dot belongs to: operation, format, and numerics class where there is one.
fn series(problem: &Problem) -> String {
    match problem {
        Problem::Decode(p) => format!("{} {} {}", problem.operation(), p.kv_format, p.numerics),
        Problem::Append(p) => format!("{} {}", Operation::Append, p.kv_format),
    }
}

/// The plots of part `i` of the page: attention, and appends, whose calls are far smaller.
pub fn plots(i: usize, m: &Measured) -> Markup {
    let rows = m.cells.iter().enumerate().map(|(row, cell)| (format!("row-{i}-{row}"), cell));
    let (appends, attention): (Vec<_>, Vec<_>) =
        rows.partition(|(_, cell)| cell.problem().operation() == Operation::Append);
    html! {
        @if !attention.is_empty() { h3 { "Decode and fused" } (plot(&format!("plot-{i}"), m.ceiling_gbps, &attention)) }
        @if !appends.is_empty() { h3 { "Append" } (plot(&format!("plot-{i}-append"), m.ceiling_gbps, &appends)) }
    }
}

/// A plot with a button a series, and a dot for each cell that leads to its row.
fn plot(id: &str, ceiling: Option<f64>, rows: &[(String, &Cell)]) -> Markup {
    let all: BTreeSet<String> = rows.iter().map(|(_, cell)| series(&cell.problem())).collect();
    let all: Vec<String> = all.into_iter().collect();
    let sizes = rows.iter().map(|(_, cell)| cell.winner.bytes as f64).filter(|bytes| *bytes > 0.0);
    let (least, most) = sizes.fold((f64::MAX, 0.0), |(low, high): (f64, f64), n| (low.min(n), high.max(n)));
    if most <= 0.0 {
        return html! { p { "No bytes are known." } };
    }
    let highest = rows.iter().map(|(_, cell)| cell.winner.gbps()).fold(ceiling.unwrap_or(0.0), f64::max);
    let scale = Scale { low: least / 1.5, high: most * 1.5, top: highest * 1.04 };
    html! {
        div.legend role="group" aria-label="Series of the plot" {
            @for (n, name) in all.iter().enumerate() {
                button type="button" aria-pressed="true" data-plot=(id) data-series=(n) {
                    svg.key viewBox="0 0 12 12" aria-hidden="true" { (mark(n, 6.0, 6.0, name)) }
                    (name)
                }
            }
        }
        div.scroll tabindex="0" role="region" aria-label="Roofline" {
            svg.plot id=(id) viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-label="Bytes of a call against the bandwidth reached; the table of winners has the same numbers" {
                (grid(&scale, ceiling))
                @for (row, cell) in rows {
                    @if cell.winner.bytes > 0 { (dot(row, cell, &scale, &all)) }
                }
            }
        }
    }
}

fn grid(scale: &Scale, ceiling: Option<f64>) -> Markup {
    let (left, right, top, bottom) = AREA;
    let roof = ceiling.unwrap_or(scale.top);
    let decades: Vec<f64> = (0..13).map(|n| 10f64.powi(n)).filter(|n| (scale.low..scale.high).contains(n)).collect();
    let step = [100.0, 200.0, 250.0, 500.0, 1000.0, 2000.0].into_iter().find(|s| scale.top / s < 7.0).unwrap_or(4000.0);
    let ticks: Vec<f64> = (0..8).map(|n| f64::from(n) * step).filter(|gbps| *gbps <= scale.top).collect();
    // A curve of equal time, from the left to where it meets the ceiling.
    let curve = |us: f64| {
        let (from, to) = (scale.low, us * roof * 1e3);
        let points = (0..=40).map(|n| from * (to / from).powf(f64::from(n) / 40.0)).filter(|b| *b <= scale.high);
        points.map(|b| format!("{:.1},{:.1}", scale.x(b), scale.y(b / us / 1e3))).collect::<Vec<_>>().join(" ")
    };
    // Those that rise out of the axis.
    let rises = |us: &f64| scale.high / us / 1e3 > 0.08 * roof;
    let times = TIMES.into_iter().filter(|us| us * roof * 1e3 > scale.low * 1.3 && rises(us));
    let meets = |us: f64| us * roof * 1e3 < scale.high * 0.96;
    html! {
        g.grid {
            @for n in &decades {
                line x1=(scale.x(*n)) x2=(scale.x(*n)) y1=(top) y2=(bottom) {}
                text x=(scale.x(*n)) y=(bottom + 18.0) text-anchor="middle" { (bytes(*n)) }
            }
            @for gbps in &ticks {
                line x1=(left) x2=(right) y1=(scale.y(*gbps)) y2=(scale.y(*gbps)) {}
                text x=(left - 8.0) y=(scale.y(*gbps) + 4.0) text-anchor="end" { (gbps) }
            }
            text x=((left + right) / 2.0) y=(HEIGHT - 8.0) text-anchor="middle" { "bytes that a call must move" }
            text x="14" y=((top + bottom) / 2.0) text-anchor="middle"
                transform=(format!("rotate(-90 14 {})", (top + bottom) / 2.0)) { "GB/s" }
        }
        g.times {
            @for us in times {
                polyline points=(curve(us)) {}
                @if meets(us) {
                    text x=(scale.x(us * roof * 1e3)) y=(scale.y(roof) - 8.0) text-anchor="middle" { (time(us)) }
                }
            }
        }
        @if let Some(ceiling) = ceiling {
            g.ceiling {
                line x1=(left) x2=(right) y1=(scale.y(ceiling)) y2=(scale.y(ceiling)) {}
                text x=(left) y="16" { (format!("read ceiling {ceiling:.0} GB/s; above it, the time in which so many bytes can be read")) }
                @for share in [1.0, 0.9, 0.75, 0.5, 0.25] {
                    text x=(right + 6.0) y=(scale.y(share * ceiling) + 4.0) { (percent(share)) }
                }
            }
        }
    }
}

fn time(us: f64) -> String {
    if us < 1e3 { format!("{us} µs") } else { format!("{} ms", us / 1e3) }
}

fn dot(row: &str, cell: &Cell, scale: &Scale, all: &[String]) -> Markup {
    let (w, series) = (&cell.winner, series(&cell.problem()));
    let n = all.iter().position(|name| *name == series).unwrap_or_default();
    let share = w.ceiling_share().map_or(String::new(), |share| format!(", {} of the ceiling", percent(share)));
    let split = w.split.map_or(String::new(), |split| format!(" {split}"));
    let text = format!(
        "{}\n{}: {} in {} µs\n{:.0} GB/s{share}\n{}{split}",
        cell.problem().key(),
        words(&w.shape),
        bytes(w.bytes as f64),
        micros(w.times.median_us),
        w.gbps(),
        w.kernel.variant.key(),
    );
    html! {
        a href=(format!("#{row}")) tabindex="-1" data-series=(n) data-tip=(text) {
            (mark(n, scale.x(w.bytes as f64), scale.y(w.gbps()), &series))
        }
    }
}

/// Operations differ in form, so that a plot without colours still tells them apart.
fn mark(n: usize, x: f64, y: f64, series: &str) -> Markup {
    let class = format!("c{}", n % COLOURS);
    let path = if series.starts_with(Operation::Append.name()) {
        format!("M{:.1} {:.1}l5 8.6h-10z", x, y - 5.0)
    } else if series.starts_with(Operation::Fused.name()) {
        format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0)
    } else {
        return html! { circle class=(class) cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r="4.5" {} };
    };
    html! { path class=(class) d=(path) {} }
}
