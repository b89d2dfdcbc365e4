//! Inputs of a decode measurement, and the spot check at that very shape.

use super::fill::Pattern;
use super::probe::Probe;
use super::spot::{Spot, SpotInputs};
use crate::gpu::{Buffer, CudaError, Device};
use crate::verify::{
    Failure, K_SCALE, Q_SCALE, SOFT_CAP, V_SCALE, compare_outputs, has_nan, normal_bits, seeded, sinks, sm_scale,
};
use nvkv_spec::abi::{DecodeParams, DevicePtr};
use nvkv_spec::layout::{Arrangement, CacheLayout, PagedTensor};
use nvkv_spec::{AppendMode, DecodeProblem, DeviceCache, Launch, Problem, Shape};
use rand::Rng;
use rand::seq::SliceRandom;
use std::rc::Rc;

/// What an output holds before the check: NaN.
const POISON: u8 = 0xff;

/// Requests over a random cache, pages in random order.
pub(super) struct DecodeBench {
    problem: DecodeProblem,
    batch: u32,
    kv_heads: u32,
    layout: CacheLayout,
    cache: Buffer,
    q: Buffer,
    new_rows: [Buffer; 2],
    block_table: Buffer,
    block_table_stride: usize,
    kv_len: Buffer,
    sinks: Buffer,
    status: Buffer,
    out: Buffer,
    spots: Vec<Spot>,
}

impl DecodeBench {
    pub(super) fn new(
        device: &Rc<Device>,
        probe: &Probe,
        problem: &DecodeProblem,
        shape: &Shape,
        kv_len: &[u32],
        kv_heads: u32,
    ) -> Result<Self, CudaError> {
        let mut rng = seeded(&format!("{}/{}", Problem::Decode(*problem).key(), shape.key()));
        let batch = kv_len.len() as u32;
        let block_table = BlockTable::new(problem, kv_len, &mut rng);
        let pages = block_table.pages;
        let (dim, page) = (problem.head_dim, problem.page_size);
        let layout = CacheLayout::new(Arrangement::Hnd, problem.kv_format, pages, kv_heads, page, dim);
        let cache = Buffer::new(device, layout.bytes as usize)?;
        fill_cache(probe, problem, &layout, pages, cache.address())?;
        let tokens = (batch * problem.q_len) as usize;
        let q = normal_bits(&mut rng, problem.dtype, tokens * (kv_heads * problem.group * dim) as usize);
        let new_elements = match problem.append {
            AppendMode::Separate => 0,
            AppendMode::Fused => tokens * (kv_heads * dim) as usize,
        };
        let new_rows: [Vec<u16>; 2] = std::array::from_fn(|_| normal_bits(&mut rng, problem.dtype, new_elements));
        let sinks = if problem.sinks { sinks(&mut rng, kv_heads * problem.group) } else { Vec::new() };
        let inputs = SpotInputs {
            problem,
            layout: &layout,
            kv_len,
            kv_heads,
            block_table: &block_table.entries,
            block_table_stride: block_table.stride,
            q: &q,
            new_rows: &new_rows,
            sinks: &sinks,
        };
        let spots = inputs.spots();
        Ok(Self {
            problem: *problem,
            batch,
            kv_heads,
            layout,
            cache,
            out: Buffer::new(device, 2 * q.len())?,
            q: Buffer::from_slice(device, &q)?,
            new_rows: [Buffer::from_slice(device, &new_rows[0])?, Buffer::from_slice(device, &new_rows[1])?],
            block_table: Buffer::from_slice(device, &block_table.entries)?,
            block_table_stride: block_table.stride,
            kv_len: Buffer::from_slice(device, &kv_len.iter().map(|&n| n as i32).collect::<Vec<_>>())?,
            sinks: Buffer::from_slice(device, &sinks)?,
            status: Buffer::from_slice(device, &[0u32])?,
            spots,
        })
    }

    /// Parameters of a launch with this workspace. No log-sum-exp: plain decode asks for none.
    pub(super) fn params(&self, launch: &Launch, workspace: DevicePtr) -> DecodeParams {
        let p = &self.problem;
        let row = |heads: u32| (2 * i64::from(heads * p.head_dim), 2 * i64::from(p.head_dim));
        let (q_token, q_head) = row(self.kv_heads * p.group);
        let (kv_token, kv_head) = row(self.kv_heads);
        let fused = p.append == AppendMode::Fused;
        let new_row = |i: usize| if fused { self.new_rows[i].address() } else { 0 };
        let cache = DeviceCache::new(self.cache.address(), &self.layout, p.kv_format);
        cache.decode_params(DecodeParams {
            q: self.q.address(),
            out: self.out.address(),
            block_table: self.block_table.address(),
            kv_len: self.kv_len.address(),
            new_k: new_row(0),
            new_v: new_row(1),
            status: self.status.address(),
            workspace,
            q_stride_token: q_token,
            q_stride_head: q_head,
            out_stride_token: q_token,
            out_stride_head: q_head,
            new_k_stride_token: kv_token,
            new_k_stride_head: kv_head,
            new_v_stride_token: kv_token,
            new_v_stride_head: kv_head,
            block_table_stride: self.block_table_stride as i64,
            batch: self.batch,
            kv_heads: self.kv_heads,
            max_splits: launch.max_splits,
            min_split_tokens: launch.min_split_tokens,
            taper: launch.taper,
            sm_scale: sm_scale(p),
            q_scale: Q_SCALE,
            k_scale: K_SCALE,
            v_scale: V_SCALE,
            window: p.window.unwrap_or_default(),
            soft_cap: if p.soft_cap { SOFT_CAP } else { 0.0 },
            sinks: if p.sinks { self.sinks.address() } else { 0 },
            ..DecodeParams::default()
        })
    }

    /// Poisons the output, runs `launch`, and compares a few heads with the reference.
    pub(super) fn check(&self, launch: impl FnOnce() -> Result<(), CudaError>) -> Result<(), Failure> {
        self.out.fill(0, self.out.bytes(), POISON)?;
        launch()?;
        let out: Vec<u16> = self.out.download(0, self.out.bytes() / 2)?;
        for spot in &self.spots {
            let got = spot.rows_of(&self.problem, self.kv_heads, &out);
            compare_outputs(self.problem.dtype, &got, &spot.expected, got.len())
                .map_err(|f| f.at(&format!("request {}, KV head {} at full shape", spot.request, spot.kv_head)))?;
        }
        no_nan(&self.problem, &out)
    }
}

/// The pages of each request, in random order; no page twice. Entries past a request's end are page 0.
struct BlockTable {
    entries: Vec<i32>,
    stride: usize,
    pages: u64,
}

impl BlockTable {
    fn new(problem: &DecodeProblem, kv_len: &[u32], rng: &mut impl Rng) -> Self {
        let blocks = |&tokens: &u32| tokens.div_ceil(problem.page_size) as usize;
        let stride = kv_len.iter().map(blocks).max().unwrap_or(0);
        let mut pages: Vec<i32> = (0..kv_len.iter().map(blocks).sum::<usize>() as i32).collect();
        pages.shuffle(rng);
        let (mut entries, mut at) = (vec![0; stride * kv_len.len()], 0);
        for (row, tokens) in entries.chunks_mut(stride.max(1)).zip(kv_len) {
            let own = &pages[at..][..blocks(tokens)];
            row[..own.len()].copy_from_slice(own);
            at += own.len();
        }
        Self { entries, stride, pages: pages.len() as u64 }
    }
}

fn no_nan(problem: &DecodeProblem, out: &[u16]) -> Result<(), Failure> {
    match has_nan(problem.dtype, out) {
        None => Ok(()),
        Some(at) => {
            let detail = format!("NaN at element {at} of the output at full shape");
            Err(Failure::Wrong { error: f64::NAN, detail })
        }
    }
}

/// Each tensor's bytes follow its place in the allocation, so that the host knows any row.
fn fill_cache(
    probe: &Probe,
    problem: &DecodeProblem,
    layout: &CacheLayout,
    pages: u64,
    base: DevicePtr,
) -> Result<(), CudaError> {
    let fill = |tensor: PagedTensor, pattern: Pattern| {
        let bytes = pages * tensor.strides.page as u64;
        if bytes == 0 { Ok(()) } else { probe.fill(base + tensor.base, bytes, tensor.base, pattern) }
    };
    fill(layout.k_data, Pattern::data(problem.kv_format.k()))?;
    fill(layout.k_scales, Pattern::scales())?;
    fill(layout.v_data, Pattern::data(problem.kv_format.v()))?;
    fill(layout.v_scales, Pattern::scales())
}
