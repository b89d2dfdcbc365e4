//! Share of the read ceiling over batch and context, a row a problem.

use super::data::{Cell, Measured, order};
use super::page::{breakable, micros, percent};
use maud::{Markup, html};
use nvkv_spec::{Lengths, Operation, Problem, Shape};

/// The tables: attention over batch and context, appends over new tokens.
pub fn tables(m: &Measured) -> Markup {
    let of = |append: bool| -> Vec<&Cell> {
        m.cells.iter().filter(|cell| (cell.problem().operation() == Operation::Append) == append).collect()
    };
    html! {
        p { "Share of the read ceiling that the winner reached." span.scale aria-hidden="true" { "0 % " span.ramp {} " 100 %" } }
        @let (attention, appends) = (of(false), of(true));
        @if !attention.is_empty() { (table("Decode and fused, by batch and context", &attention)) }
        @if !appends.is_empty() { (table("Append, by new tokens", &appends)) }
    }
}

fn table(title: &str, cells: &[&Cell]) -> Markup {
    let mut shapes: Vec<Shape> = cells.iter().map(|cell| cell.winner.shape).collect();
    shapes.sort_by_key(order);
    shapes.dedup();
    let mut problems: Vec<Problem> = cells.iter().map(|cell| cell.problem()).collect();
    problems.dedup();
    let heads = shapes.iter().any(|shape| shape.kv_heads() != shapes[0].kv_heads());
    let find = |problem: &Problem, shape: &Shape| {
        cells.iter().find(|cell| cell.problem() == *problem && cell.winner.shape == *shape)
    };
    html! {
        h3 { (title) }
        div.scroll tabindex="0" role="region" aria-label=(title) {
            table.heat {
                thead {
                    tr { td {} @for (batch, n) in groups(&shapes) { th scope="colgroup" colspan=(n) { (batch) } } }
                    @if matches!(shapes.first(), Some(Shape::Decode { .. })) || heads {
                        tr { td {} @for shape in &shapes { th scope="col" { (context(shape)) @if heads { br; (shape.kv_heads()) " heads" } } } }
                    }
                }
                tbody { @for problem in &problems { tr {
                    th.name scope="row" { (breakable(&problem.key())) }
                    @for shape in &shapes { (cell(find(problem, shape))) }
                } } }
            }
        }
    }
}

/// Neighbouring shapes of one batch, in words, and how many they are.
fn groups(shapes: &[Shape]) -> Vec<(String, usize)> {
    let batch = |shape: &Shape| match shape {
        Shape::Decode { batch, .. } => format!("batch {batch}"),
        Shape::Append { tokens, .. } => format!("{tokens}"),
    };
    shapes.chunk_by(|a, b| batch(a) == batch(b)).map(|group| (batch(&group[0]), group.len())).collect()
}

/// A context in the binary thousands that it mostly is.
pub fn context(shape: &Shape) -> String {
    let Shape::Decode { context, lengths, .. } = *shape else { return String::new() };
    let tokens = |n: u32| if n >= 1024 && n.is_multiple_of(1024) { format!("{}K", n / 1024) } else { n.to_string() };
    match lengths {
        Lengths::Equal => tokens(context),
        Lengths::LogUniform => format!("{}–{}", tokens(Lengths::SHORTEST), tokens(context)),
    }
}

fn cell(cell: Option<&&Cell>) -> Markup {
    let Some((cell, share)) = cell.and_then(|cell| Some((cell, cell.winner.ceiling_share()?))) else {
        return html! { td.none { "–" } };
    };
    let tip = format!(
        "{} µs, {:.0} GB/s\n{}",
        micros(cell.winner.times.median_us),
        cell.winner.gbps(),
        cell.winner.kernel.variant.key()
    );
    // What text a background bears, dark or light, in either theme.
    let class = match share {
        0.7.. => "hot",
        0.48.. => "warm",
        _ => "cold",
    };
    html! { td class=(class) style=(format!("--share:{:.1}%", 100.0 * share.min(1.0))) data-tip=(tip) { (percent(share)) } }
}
