//! A bundle as the tuner writes it, used as an engine uses it: opened by the runtime, found at a shape that was not
//! tuned, and launched with the parameters that come out, in the emulator, against the reference.
//!
//! Needs NVRTC, found as always.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code)] // views a parameter struct as its bytes

use assert_cmd::Command;
use nvkv_emulator::{Memory, Module};
use nvkv_reference::codec::{from_f32, to_f32};
use nvkv_reference::{DecodeInputs, HostCache};
use nvkv_runtime::spec::abi::DecodeParams;
use nvkv_runtime::spec::layout::Arrangement;
use nvkv_runtime::spec::{
    AppendMode, DecodeProblem, DeviceCache, Dtype, KvFormat, Lengths, Numerics, Problem, Shape, VScaleOrder,
};
use nvkv_runtime::{Runtime, Trust};
use std::fs;

const PROBLEM: DecodeProblem = DecodeProblem {
    kv_format: KvFormat::Nvfp4,
    numerics: Numerics::Fp8,
    head_dim: 64,
    group: 8,
    q_len: 1,
    page_size: 16,
    dtype: Dtype::Bf16,
    v_scale_order: VScaleOrder::Linear,
    append: AppendMode::Separate,
    window: None,
    sinks: false,
    soft_cap: false,
};
const KV_HEADS: u32 = 2;
const LENGTHS: [i32; 3] = [700, 33, 0];
const STRIDE: usize = 700usize.div_ceil(16);

#[test]
fn what_the_runtime_finds_computes_what_the_reference_does() {
    let place = tempfile::tempdir().unwrap();
    let tune = "--arch sm_100 --op decode --kv-format nvfp4 --numerics fp8 --head-dim 64 --group 8 --q-len 1 \
                --page-size 16 --dtype bf16 --batch 2 --context 1024 --kv-heads 2";
    let mut command = Command::cargo_bin("nvkv-tune").unwrap();
    command.current_dir(place.path()).env("CUDA_VISIBLE_DEVICES", "-1").args(tune.split_whitespace());
    command.assert().code(0);
    let folder = place.path().join("kernels-out/sm_100a");
    let runtime = Runtime::open(&folder, Some(&place.path().join("db/nvkv.sqlite"))).unwrap();
    assert!(runtime.refused().iter().all(
        |refused| refused.shape != Shape::Decode { batch: 2, context: 1024, kv_heads: 2, lengths: Lengths::Equal }
    ));
    let shape =
        Shape::Decode { batch: LENGTHS.len() as u32, context: 700, kv_heads: KV_HEADS, lengths: Lengths::Equal };
    let found = runtime.find(&Problem::Decode(PROBLEM), &shape).unwrap();
    assert!(matches!(found.trust, Trust::Predicted { distance } if distance > 0.0), "{:?}", found.trust);
    assert!(found.launch.max_splits > 1, "so that the workspace is used");

    let pages = LENGTHS.len() * STRIDE;
    let mut cache =
        HostCache::new(Arrangement::Nhd, KvFormat::Nvfp4, VScaleOrder::Linear, pages as u64, KV_HEADS, 16, 64);
    let element = |i: usize| from_f32(Dtype::Bf16, ((i * 7919) % 1000) as f32 / 250.0 - 2.0);
    let rows: Vec<u16> = (0..pages * 16 * KV_HEADS as usize * 64).map(element).collect();
    let values: Vec<u16> = rows.iter().rev().copied().collect();
    let slots: Vec<i64> = (0..(pages * 16) as i64).collect();
    nvkv_reference::append(&PROBLEM.append_problem(), &rows, &values, &slots, 0.4, 0.7, &mut cache);
    let table: Vec<i32> = (0..pages as i32).rev().collect();
    let heads = KV_HEADS * PROBLEM.group;
    let q: Vec<u16> = (0..LENGTHS.len() * (heads * 64) as usize).map(|i| element(i * 31)).collect();

    let mut memory = Memory::new();
    let mut hold = |bytes: &[u8]| {
        let address = memory.alloc(bytes.len());
        memory.write(address, bytes).unwrap();
        address
    };
    let of_i32 = |numbers: &[i32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    let device_cache = DeviceCache::new(hold(&cache.bytes), &cache.layout, PROBLEM.kv_format);
    let row = 2 * 64i64;
    let out_bytes = 2 * q.len();
    let params = device_cache.decode_params(DecodeParams {
        q: hold(&q.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<_>>()),
        out: hold(&vec![0xff; out_bytes]),
        block_table: hold(&of_i32(&table)),
        kv_len: hold(&of_i32(&LENGTHS)),
        workspace: hold(&vec![0; found.launch.workspace_bytes as usize]),
        q_stride_token: row * i64::from(heads),
        q_stride_head: row,
        out_stride_token: row * i64::from(heads),
        out_stride_head: row,
        block_table_stride: STRIDE as i64,
        batch: LENGTHS.len() as u32,
        kv_heads: KV_HEADS,
        max_splits: found.launch.max_splits,
        min_split_tokens: found.launch.min_split_tokens,
        taper: found.launch.taper,
        sm_scale: 0.125,
        q_scale: 0.02,
        k_scale: 0.4,
        v_scale: 0.7,
        ..DecodeParams::default()
    });
    // SAFETY: `repr(C)` numbers whose offsets `spec::abi` tests; padding at the end is none of the kernel's.
    let bytes =
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(&params).cast::<u8>(), size_of::<DecodeParams>()) };
    let ptx = fs::read_to_string(folder.join(found.kernel.id.as_str()).join("kernel.ptx")).unwrap();
    let module = Module::parse(&ptx).unwrap();
    let (launch, symbol) = (found.launch, &found.kernel.symbol);
    let (block, target) = ([launch.threads, 1, 1], module.target());
    nvkv_emulator::launch(&module, symbol, launch.grid, block, launch.shared_bytes, bytes, &mut memory, target)
        .unwrap();
    let out = memory.read(params.out, out_bytes).unwrap();

    let expected = nvkv_reference::decode(&DecodeInputs {
        problem: &PROBLEM,
        q: &q,
        cache: &cache,
        block_table: &table,
        block_table_stride: STRIDE,
        kv_len: &LENGTHS,
        sm_scale: params.sm_scale,
        q_scale: params.q_scale,
        k_scale: params.k_scale,
        v_scale: params.v_scale,
        window: None,
        sinks: None,
        soft_cap: None,
    });
    let got = out.as_chunks().0.iter().map(|&bits| f64::from(to_f32(Dtype::Bf16, u16::from_le_bytes(bits))));
    let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut got.zip(&expected.out).map(|(got, want)| got - want));
    let error = difference / norm(&mut expected.out.iter().copied());
    assert!(error < 4e-3, "relative error {error:.2e}");
}
