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
    html! { td class=(heat(share)) style=(format!("--share:{:.1}%", 100.0 * share.min(1.0))) data-tip=(tip) { (percent(share)) } }
}

/// Which of the two inks of `page.css` a cell of this share has: `hot` ones that of the high end, `warm` ones in the dark
/// theme only. The borders are where black and white are equally legible.
fn heat(share: f64) -> &'static str {
    match share {
        0.74.. => "hot",
        0.555.. => "warm",
        _ => "cold",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rgb = [f64; 3];

    /// `#rgb` or `#rrggbb` of a property of `page.css`, in linear light (sRGB, IEC 61966-2-1).
    fn colour(theme: &str, name: &str) -> Rgb {
        let digits = theme.split_once(&format!("--{name}: #")).unwrap().1.split_once(';').unwrap().0;
        let width = digits.len() / 3;
        [0, 1, 2].map(|i| {
            let digits = digits[width * i..][..width].repeat(2 / width);
            let c = f64::from(u8::from_str_radix(&digits, 16).unwrap()) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn product(m: [Rgb; 3], v: Rgb) -> Rgb {
        m.map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum())
    }

    /// Linear sRGB to Oklab, as CSS Color 4 mixes colours: <https://bottosson.github.io/posts/oklab/>.
    fn oklab(rgb: Rgb) -> Rgb {
        let lms = product(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ],
            rgb,
        );
        product(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ],
            lms.map(f64::cbrt),
        )
    }

    fn rgb(lab: Rgb) -> Rgb {
        let lms = product(
            [
                [1.0, 0.3963377774, 0.2158037573],
                [1.0, -0.1055613458, -0.0638541728],
                [1.0, -0.0894841775, -1.2914855480],
            ],
            lab,
        );
        product(
            [
                [4.0767416621, -3.3077115913, 0.2309699292],
                [-1.2684380046, 2.6097574011, -0.3413193965],
                [-0.0041960863, -0.7034186147, 1.7076147010],
            ],
            lms.map(|x| x.powi(3)),
        )
        .map(|c| c.clamp(0.0, 1.0))
    }

    /// Contrast of two colours by WCAG 2.2.
    fn contrast(a: Rgb, b: Rgb) -> f64 {
        let [a, b] = [a, b].map(|[r, g, b]| 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn text_on_every_colour_of_the_scale_is_legible_in_both_themes() {
        let (light, dark) = include_str!("page.css").split_once("data-theme=\"dark\"").unwrap();
        for (theme, hot) in [(light, &["hot"][..]), (dark, &["hot", "warm"])] {
            let [low, high] = ["heat-low", "heat"].map(|name| oklab(colour(theme, name)));
            for thousandths in 0..=1000 {
                let share = f64::from(thousandths) / 1000.0;
                let background = rgb([0, 1, 2].map(|i| low[i] + share * (high[i] - low[i])));
                let ink = colour(theme, if hot.contains(&heat(share)) { "hot" } else { "cold" });
                let contrast = contrast(ink, background);
                assert!(contrast >= 4.5, "{contrast:.2} at {share} with {hot:?}; WCAG's level AA is 4.5");
            }
        }
    }
}
