//! Inputs of an append measurement, and the spot check at that very shape.

use crate::gpu::{Buffer, CudaError, Device};
use crate::verify::{Failure, K_SCALE, V_SCALE, normal_bits, seeded};
use nvkv_reference::{HostCache, append};
use nvkv_spec::abi::AppendParams;
use nvkv_spec::layout::Arrangement;
use nvkv_spec::{AppendProblem, DeviceCache, Problem, Shape};
use rand::seq::SliceRandom;
use std::rc::Rc;

/// Tokens whose rows are compared with the reference.
const CHECKED_TOKENS: usize = 4;

/// `tokens` random rows to random slots.
pub(super) struct AppendBench {
    problem: AppendProblem,
    host: HostCache,
    rows: [Vec<u16>; 2],
    slots: Vec<i64>,
    cache: Buffer,
    k: Buffer,
    v: Buffer,
    slot_mapping: Buffer,
    status: Buffer,
}

impl AppendBench {
    pub(super) fn new(
        device: &Rc<Device>,
        problem: &AppendProblem,
        tokens: u32,
        kv_heads: u32,
    ) -> Result<Self, CudaError> {
        let shape = Shape::Append { tokens, kv_heads };
        let mut rng = seeded(&format!("{}/{}", Problem::Append(*problem).key(), shape.key()));
        let (page, dim, order) = (problem.page_size, problem.head_dim, problem.v_scale_order);
        let pages = u64::from(tokens.div_ceil(page));
        let host = HostCache::new(Arrangement::Hnd, problem.kv_format, order, pages, kv_heads, page, dim);
        let mut slots: Vec<i64> = (0..(pages * u64::from(page)) as i64).collect();
        slots.shuffle(&mut rng);
        slots.truncate(tokens as usize);
        let elements = tokens as usize * (kv_heads * dim) as usize;
        let rows: [Vec<u16>; 2] = std::array::from_fn(|_| normal_bits(&mut rng, problem.dtype, elements));
        Ok(Self {
            problem: *problem,
            cache: Buffer::from_slice(device, &host.bytes)?,
            k: Buffer::from_slice(device, &rows[0])?,
            v: Buffer::from_slice(device, &rows[1])?,
            slot_mapping: Buffer::from_slice(device, &slots)?,
            status: Buffer::from_slice(device, &[0u32])?,
            host,
            rows,
            slots,
        })
    }

    /// Parameters of every launch.
    pub(super) fn params(&self) -> AppendParams {
        let (heads, dim) = (i64::from(self.host.kv_heads), i64::from(self.problem.head_dim));
        let (token, head) = (2 * heads * dim, 2 * dim);
        let cache = DeviceCache::new(self.cache.address(), &self.host.layout, self.problem.kv_format);
        cache.append_params(AppendParams {
            k: self.k.address(),
            v: self.v.address(),
            slot_mapping: self.slot_mapping.address(),
            status: self.status.address(),
            k_stride_token: token,
            k_stride_head: head,
            v_stride_token: token,
            v_stride_head: head,
            tokens: self.slots.len() as u32,
            kv_heads: self.host.kv_heads,
            k_scale: K_SCALE,
            v_scale: V_SCALE,
            ..AppendParams::default()
        })
    }

    /// Zeroes the cache, runs `launch`, and appends a few of its tokens once more by the reference: if
    /// the kernel stored them right, that changes nothing.
    pub(super) fn check(&self, launch: impl FnOnce() -> Result<(), CudaError>) -> Result<(), Failure> {
        self.cache.fill(0, self.cache.bytes(), 0)?;
        launch()?;
        let mut cache = self.host.clone();
        cache.bytes = self.cache.download(0, self.cache.bytes())?;
        let stored = cache.bytes.clone();
        let row = (self.host.kv_heads * self.problem.head_dim) as usize;
        let step = self.slots.len().div_ceil(CHECKED_TOKENS).max(1);
        for token in (0..self.slots.len()).step_by(step) {
            let [k, v] = self.rows.each_ref().map(|tensor| &tensor[token * row..][..row]);
            append(&self.problem, k, v, &self.slots[token..=token], K_SCALE, V_SCALE, &mut cache);
            if cache.bytes != stored {
                let detail = format!("token {token} at full shape is stored wrong");
                return Err(Failure::Wrong { error: f64::NAN, detail });
            }
        }
        Ok(())
    }
}
