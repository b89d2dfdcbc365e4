//! The table of a bench: a line a problem and shape, one column a peer.

use super::{Bench, Row};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::collections::BTreeSet;

/// Missing or failed rows that are listed by name.
const SHOWN: usize = 5;

pub fn render(bench: &Bench) -> String {
    let gpu = &bench.gpu;
    let mut text = format!(
        "{} (driver {}), {}. Read ceiling {:.0} GB/s.\nMedians of cold-L2 calls under graph replay. A peer's × is its time over ours.\n\
         Plain: a kernel that only reads as many bytes (and, for append, writes as many), timed the same way; its × is our time over it.\n",
        gpu.name,
        gpu.driver,
        bench.bundle.display(),
        bench.read_ceiling_gbps
    );
    let peers: BTreeSet<&str> = bench.rows.iter().flat_map(|row| &row.peers).map(|(name, _)| name.as_str()).collect();
    for rows in bench.rows.chunk_by(|a, b| a.problem == b.problem) {
        text += &format!("\n{}\n{}\n", rows[0].problem.key(), grid(rows, bench.read_ceiling_gbps, &peers));
    }
    text += &listed("not in the bundle (`nvkv-tune --preset standard` tunes them)", &bench.missing);
    text + &listed("not timed", &bench.failed)
}

fn grid(rows: &[Row], ceiling: f64, peers: &BTreeSet<&str>) -> Table {
    let peers: Vec<_> = peers.iter().filter(|peer| rows.iter().any(|row| us(row, peer).is_some())).collect();
    let mut table = Table::new();
    let mut header: Vec<_> =
        ["shape", "kernel", "split", "µs", "GB/s", "ceiling", "plain, µs"].map(String::from).into();
    header.extend(peers.iter().map(|peer| format!("{peer}, µs")));
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for row in rows {
        let split = row.split.map_or("-".into(), |split| split.to_string());
        let mut cells = vec![
            row.shape.key(),
            row.variant.clone(),
            split,
            format!("{:.1}", row.median_us),
            format!("{:.0}", row.gbps()),
            format!("{:.1} %", 100.0 * row.gbps() / ceiling),
            row.plain_us.map_or("-".into(), |us| format!("{us:.1} ({:.2}×)", row.median_us / us)),
        ];
        let beside = |peer| us(row, peer).map_or("-".into(), |us| format!("{us:.1} ({:.2}×)", us / row.median_us));
        cells.extend(peers.iter().map(|peer| beside(peer)));
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn us(row: &Row, peer: &str) -> Option<f64> {
    row.peers.iter().find(|(name, _)| name == peer).map(|(_, us)| *us)
}

fn listed(what: &str, names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let first: String = names.iter().take(SHOWN).map(|name| format!("  {name}\n")).collect();
    let more = if names.len() > SHOWN { format!("  and {} more\n", names.len() - SHOWN) } else { String::new() };
    format!("\n{} {what}:\n{first}{more}", names.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvkv_generator::{Preset, default_variant, problems};
    use nvkv_spec::{GpuEnvironment, KernelId, Operation, Shape, Target};

    fn row(tokens: u32, plain_us: Option<f64>, peers: &[(&str, f64)]) -> Row {
        let problem = problems(Preset::Quick, &[Operation::Append])[0];
        let (shape, variant) = (Shape::Append { tokens, kv_heads: 8 }, default_variant(&problem, Target::Sm90a));
        Row {
            problem,
            shape,
            kernel: KernelId::new(&problem, &variant),
            variant: variant.key(),
            split: None,
            bytes: shape.bytes(&problem),
            median_us: 15.0,
            plain_us,
            samples: vec![15.0],
            peers: peers.iter().map(|(name, us)| (name.to_string(), *us)).collect(),
        }
    }

    #[test]
    fn ours_is_over_the_plain_transfer_and_a_peer_over_ours() {
        let rows = vec![row(64, Some(12.0), &[("P 1", 30.0)]), row(256, None, &[])];
        let (gpu, bundle) = (GpuEnvironment::default(), "bundle".into());
        let text = render(&Bench { gpu, bundle, read_ceiling_gbps: 4000.0, rows, missing: vec![], failed: vec![] });
        // No column's name or cell has two spaces in it.
        let line = |start: &str| {
            let line =
                text.lines().map(str::trim).find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(line("shape")[5..], ["ceiling", "plain, µs", "P 1, µs"]);
        assert_eq!(line("t64-h8")[6..], ["12.0 (1.25×)", "30.0 (2.00×)"]);
        assert_eq!(line("t256-h8")[6..], ["-", "-"]);
        assert!(line("Plain:")[0].contains("our time over it"));
    }
}
