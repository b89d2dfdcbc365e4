//! The table of a bench: a line a problem and shape, one column a peer.

use super::{Bench, Row};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::collections::BTreeSet;

/// Missing or failed rows that are listed by name.
const SHOWN: usize = 5;

pub fn render(bench: &Bench) -> String {
    let gpu = &bench.gpu;
    let mut text = format!(
        "{} (driver {}), {}. Read ceiling {:.0} GB/s.\nMedians of cold-L2 calls under graph replay; × is the peer's time over ours.\n",
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
    let mut header: Vec<_> = ["shape", "kernel", "split", "µs", "GB/s", "ceiling"].map(String::from).into();
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
