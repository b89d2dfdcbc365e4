//! Times of another library, as its script wrote them: one JSON object a file.

use crate::folder::failed;
use anyhow::Context;
use nvkv_spec::{AppendMode, Lengths, Problem, Shape};
use serde::Deserialize;
use std::fs;
use std::path::Path;

/// A peer's decode kernel and its times.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// Name and version, and the type of its cache: `FlashInfer 0.6.13 BF16`.
    peer: String,
    rows: Vec<PeerRow>,
}

/// One decode step: sizes as in [`Shape::Decode`] and the problem.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerRow {
    head_dim: u32,
    group: u32,
    q_len: u32,
    page_size: u32,
    batch: u32,
    context: u32,
    kv_heads: u32,
    #[serde(default)]
    lengths: Lengths,
    /// Time of one call, µs.
    us: f64,
}

impl Peers {
    /// Reads `file`.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(file).map_err(failed("read", file))?;
        serde_json::from_slice(&bytes).with_context(|| format!("{}: not the times of a peer", file.display()))
    }

    pub fn name(&self) -> &str {
        &self.peer
    }

    /// Its time for what `problem` does at `shape`, whatever its cache's type. A fused append is not what it does.
    pub fn us(&self, problem: &Problem, shape: &Shape) -> Option<f64> {
        let (Problem::Decode(p), &Shape::Decode { batch, context, kv_heads, lengths }) = (problem, shape) else {
            return None;
        };
        if p.append == AppendMode::Fused {
            return None;
        }
        let asked = (p.head_dim, p.group, p.q_len, p.page_size, batch, context, kv_heads, lengths);
        let of = |r: &PeerRow| {
            (r.head_dim, r.group, r.q_len, r.page_size, r.batch, r.context, r.kv_heads, r.lengths) == asked
        };
        self.rows.iter().find(|row| of(row)).map(|row| row.us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_time_is_found_by_sizes_alone() {
        let text = r#"{"peer": "P", "rows": [{"head_dim": 128, "group": 8, "q_len": 1, "page_size": 16, "batch": 64,
            "context": 16384, "kv_heads": 8, "us": 988.5}]}"#;
        let peers: Peers = serde_json::from_str(text).unwrap();
        let problem = nvkv_generator::problems(nvkv_generator::Preset::Quick, &[nvkv_spec::Operation::Decode])[0];
        let at = |batch, lengths| Shape::Decode { batch, context: 16384, kv_heads: 8, lengths };
        assert_eq!(peers.us(&problem, &at(64, Lengths::Equal)), Some(988.5));
        assert_eq!(peers.us(&problem, &at(8, Lengths::Equal)), None);
        assert_eq!(peers.us(&problem, &at(64, Lengths::LogUniform)), None);
    }
}
