//! Calls that must not reach a GPU are refused by name; a good call gets as far as this machine does.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code)] // made-up addresses: the checks come before the driver, and no kernel is loaded

use nvkv_runtime::spec::abi::{AppendParams, DecodeParams};
use nvkv_runtime::spec::layout::{Arrangement, CacheLayout};
use nvkv_runtime::spec::{AppendMode, DecodeProblem, KvFormat, Lengths, Problem, Shape, VScaleOrder};
use nvkv_runtime::{CallError, LaunchError, LoadError, Runtime, fixture};

const BATCH: u32 = 8;
const KV_HEADS: u32 = 8;
const PLENTY: u64 = 1 << 30;

fn runtime(problem: DecodeProblem) -> Runtime {
    let folder = tempfile::tempdir().unwrap();
    let kernels = [Problem::Decode(problem), Problem::Append(problem.append_problem())];
    let kernels = kernels.map(|problem| fixture::kernel(problem, 16, true)).into();
    fixture::write(folder.path(), &fixture::manifest(kernels)).unwrap();
    Runtime::open(folder.path(), None).unwrap()
}

/// A right call over a cache at a made-up address.
fn call(problem: &DecodeProblem, arrangement: Arrangement) -> DecodeParams {
    let (page, dim) = (problem.page_size, problem.head_dim);
    let layout = CacheLayout::new(arrangement, problem.kv_format, 64, KV_HEADS, page, dim);
    let at = |tensor: nvkv_runtime::spec::layout::PagedTensor| (0x10_0000 + tensor.base, tensor.strides);
    let ((k_data, k), (k_scales, ks)) = (at(layout.k_data), at(layout.k_scales));
    let ((v_data, v), (v_scales, vs)) = (at(layout.v_data), at(layout.v_scales));
    let head = 2 * i64::from(dim);
    let (kv_token, q_token) = (head * i64::from(KV_HEADS), head * i64::from(KV_HEADS * problem.group));
    DecodeParams {
        q: 0x1000,
        out: 0x2000,
        k_data,
        k_scales,
        v_data,
        v_scales,
        block_table: 0x3000,
        kv_len: 0x4000,
        new_k: 0x5000,
        new_v: 0x6000,
        status: 0x7000,
        workspace: 0x8000,
        q_stride_token: q_token,
        q_stride_head: head,
        out_stride_token: q_token,
        out_stride_head: head,
        k_data_page: k.page,
        k_data_head: k.head,
        k_data_token: k.token,
        k_scales_page: ks.page,
        k_scales_head: ks.head,
        k_scales_token: ks.token,
        v_data_page: v.page,
        v_data_head: v.head,
        v_data_token: v.token,
        v_scales_page: vs.page,
        v_scales_head: vs.head,
        v_scales_token: vs.token,
        new_k_stride_token: kv_token,
        new_k_stride_head: head,
        new_v_stride_token: kv_token,
        new_v_stride_head: head,
        block_table_stride: 8,
        batch: BATCH,
        kv_heads: KV_HEADS,
        sm_scale: 0.1,
        q_scale: 1.0,
        k_scale: 1.0,
        v_scale: 1.0,
        ..DecodeParams::default()
    }
}

fn launch(problem: &DecodeProblem, params: &DecodeParams, workspace: u64) -> Result<(), LaunchError> {
    let runtime = runtime(*problem);
    let shape = Shape::Decode { batch: BATCH, context: 8192, kv_heads: KV_HEADS, lengths: Lengths::Equal };
    let found = runtime.find(&Problem::Decode(*problem), &shape).unwrap();
    assert!(found.launch.workspace_bytes > 0, "the case that needs a workspace");
    // SAFETY: no kernel was prepared, so nothing is launched.
    unsafe { runtime.decode(&found, params, workspace, std::ptr::null_mut()) }
}

fn refusal(problem: &DecodeProblem, change: impl FnOnce(&mut DecodeParams)) -> String {
    let mut params = call(problem, Arrangement::Hnd);
    change(&mut params);
    match launch(problem, &params, PLENTY) {
        Err(LaunchError::Call(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The call is right: what is missing is a driver, a context or the loaded kernel.
fn assert_passes(problem: &DecodeProblem, params: &DecodeParams) {
    match launch(problem, params, PLENTY) {
        Err(LaunchError::Load(LoadError::NoDriver | LoadError::NoContext) | LaunchError::NotLoaded { .. }) => {}
        other => panic!("{}: {other:?}", Problem::Decode(*problem).key()),
    }
}

fn fused() -> DecodeProblem {
    DecodeProblem { append: AppendMode::Fused, ..fixture::problem() }
}

#[test]
fn every_layout_that_engines_hold_passes() {
    for &arrangement in Arrangement::ALL {
        for head_dim in [64, 128, 256] {
            for page_size in [8, 128] {
                for &kv_format in KvFormat::ALL {
                    let problem = DecodeProblem { head_dim, page_size, kv_format, ..fused() };
                    assert_passes(&problem, &call(&problem, arrangement));
                }
            }
        }
    }
    let interleaved = DecodeProblem { v_scale_order: VScaleOrder::Interleaved4, ..fused() };
    let call_of = |token| DecodeParams { v_scales_token: token, ..call(&interleaved, Arrangement::Hnd) };
    assert_passes(&interleaved, &call_of(-3));
    // One request's row of the table may be shared, and a plain decode needs nothing of the append.
    assert_passes(&fused(), &DecodeParams { block_table_stride: 0, ..call(&fused(), Arrangement::Nhd) });
    let plain = fixture::problem();
    assert_passes(&plain, &DecodeParams { new_k: 0, new_v: 0, status: 0, ..call(&plain, Arrangement::Hnd) });
}

#[test]
fn null_pointers_are_named_with_what_they_are() {
    for (name, null) in [
        ("q", (|p| p.q = 0) as fn(&mut DecodeParams)),
        ("out", |p| p.out = 0),
        ("k_data", |p| p.k_data = 0),
        ("k_scales", |p| p.k_scales = 0),
        ("v_data", |p| p.v_data = 0),
        ("v_scales", |p| p.v_scales = 0),
        ("block_table", |p| p.block_table = 0),
        ("kv_len", |p| p.kv_len = 0),
        ("new_k", |p| p.new_k = 0),
        ("new_v", |p| p.new_v = 0),
        ("status", |p| p.status = 0),
        ("workspace", |p| p.workspace = 0),
    ] {
        let said = refusal(&fused(), null);
        assert!(said.starts_with(&format!("{name} is null: pass the device address of ")), "{said}");
    }
    let fp8 = DecodeProblem { kv_format: KvFormat::Fp8E4m3, ..fused() };
    assert_passes(&fp8, &DecodeParams { k_scales: 0, v_scales: 0, ..call(&fp8, Arrangement::Hnd) });
    let mixed = DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, ..fused() };
    assert_passes(&mixed, &DecodeParams { k_scales: 0, ..call(&mixed, Arrangement::Hnd) });
    assert!(refusal(&mixed, |p| p.v_scales = 0).starts_with("v_scales is null"));
}

#[test]
fn what_is_less_aligned_than_the_kernels_load_is_named() {
    for (name, multiple, misalign) in [
        ("q", 16, (|p| p.q += 8) as fn(&mut DecodeParams)),
        ("out", 16, |p| p.out += 2),
        ("lse", 4, |p| p.lse = 0x9002),
        ("k_data", 16, |p| p.k_data += 8),
        ("v_data", 16, |p| p.v_data += 1),
        ("k_scales", 8, |p| p.k_scales += 4),
        ("v_scales", 8, |p| p.v_scales += 4),
        ("new_k", 16, |p| p.new_k += 8),
        ("new_v", 16, |p| p.new_v += 8),
        ("block_table", 4, |p| p.block_table += 2),
        ("kv_len", 4, |p| p.kv_len += 1),
        ("status", 4, |p| p.status += 2),
        ("workspace", 256, |p| p.workspace += 128),
        ("q_stride_token", 16, |p| p.q_stride_token += 8),
        ("q_stride_head", 16, |p| p.q_stride_head += 8),
        ("out_stride_token", 16, |p| p.out_stride_token += 2),
        ("out_stride_head", 16, |p| p.out_stride_head += 8),
        ("new_k_stride_token", 16, |p| p.new_k_stride_token += 8),
        ("new_v_stride_head", 16, |p| p.new_v_stride_head += 8),
        ("k_data_page", 16, |p| p.k_data_page += 8),
        ("k_data_head", 16, |p| p.k_data_head += 8),
        ("v_data_token", 16, |p| p.v_data_token += 8),
        ("k_scales_token", 8, |p| p.k_scales_token += 4),
        ("v_scales_head", 8, |p| p.v_scales_head += 2),
    ] {
        let said = refusal(&fused(), misalign);
        assert!(
            said.starts_with(&format!("{name} is ")) && said.contains(&format!("no multiple of {multiple}:")),
            "{said}"
        );
    }
}

#[test]
fn strides_beyond_32_bits_are_refused() {
    let said = refusal(&fused(), |p| p.k_data_page = 1 << 32);
    assert!(said.starts_with("k_data_page is 4294967296"), "{said}");
    assert!(refusal(&fused(), |p| p.v_scales_token = -8).starts_with("v_scales_token is -8"));
    assert!(refusal(&fused(), |p| p.block_table_stride = -1).starts_with("block_table_stride is -1"));
    let far = DecodeParams { k_data_head: 1 << 40, k_data_page: 0, ..call(&fused(), Arrangement::Hnd) };
    assert_passes(&fused(), &far);
}

/// A cache of other sizes than the problem's shows in its strides.
#[test]
fn a_cache_of_another_page_size_head_dim_or_order_of_axes_is_noticed() {
    let strides_of = |other: DecodeProblem, arrangement| {
        let taken = call(&other, arrangement);
        move |p: &mut DecodeParams| {
            (p.k_data_page, p.k_data_head, p.k_data_token) = (taken.k_data_page, taken.k_data_head, taken.k_data_token)
        }
    };
    let smaller_pages = DecodeProblem { page_size: 8, ..fused() };
    let smaller_heads = DecodeProblem { head_dim: 64, ..fused() };
    for other in [strides_of(smaller_pages, Arrangement::Hnd), strides_of(smaller_heads, Arrangement::Hnd)] {
        let said = refusal(&fused(), other);
        assert!(said.starts_with("k_data: rows of 64 bytes overlap"), "{said}");
    }
    assert!(refusal(&fused(), strides_of(smaller_pages, Arrangement::Nhd)).contains("overlap"));
    let said = refusal(&fused(), |p| p.q_stride_head = 128);
    assert!(said.starts_with("q: 64 rows of 256 bytes overlap"), "{said}");
}

#[test]
fn sizes_and_scales_are_those_that_were_asked_for() {
    assert!(refusal(&fused(), |p| p.batch = 9).starts_with("batch is 9, but the kernel was found for 8"));
    assert!(refusal(&fused(), |p| p.kv_heads = 4).starts_with("kv_heads is 4"));
    for scale in [0.0, -1.0, 1e-40, f32::NAN, f32::INFINITY] {
        assert!(refusal(&fused(), |p| p.q_scale = scale).starts_with("q_scale is"), "{scale}");
        assert!(refusal(&fused(), |p| p.k_scale = scale).starts_with("k_scale is"), "{scale}");
    }
    let error = launch(&fused(), &call(&fused(), Arrangement::Hnd), 100).unwrap_err();
    assert!(matches!(error, LaunchError::Call(CallError::Workspace { have: 100, .. })), "{error}");
}

#[test]
fn window_sinks_and_soft_cap_are_given_where_the_problem_has_them_and_only_there() {
    let problem = DecodeProblem { window: Some(128), sinks: true, soft_cap: true, ..fused() };
    let set = |p: &mut DecodeParams| (p.window, p.sinks, p.soft_cap) = (128, 0x9000, 50.0);
    let mut right = call(&problem, Arrangement::Hnd);
    set(&mut right);
    assert_passes(&problem, &right);
    assert_passes(&problem, &DecodeParams { window: u32::MAX, ..right });
    type Change = fn(&mut DecodeParams);
    for (change, expected) in [
        ((|p| p.window = 0) as Change, "window is 0: a query sees itself at least"),
        (|p| p.sinks = 0, "sinks is null: pass the device address of logit of each query head"),
        (|p| p.sinks = 0x9002, "sinks is 36866, no multiple of 4"),
        (|p| p.soft_cap = 0.0, "soft_cap is 0.0: it must be finite and more than 0"),
        (|p| p.soft_cap = -50.0, "soft_cap is -50"),
        (|p| p.soft_cap = f32::NAN, "soft_cap is NaN"),
        (|p| p.soft_cap = f32::INFINITY, "soft_cap is inf"),
    ] {
        let said = refusal(&problem, |p| (set(p), change(p)).1);
        assert!(said.starts_with(expected), "{said}");
    }
    for (name, change) in [
        ("window", (|p| p.window = 128) as Change),
        ("sinks", |p| p.sinks = 0x9000),
        ("soft_cap", |p| p.soft_cap = 50.0),
    ] {
        let said = refusal(&fused(), change);
        assert!(said.starts_with(&format!("{name} is set, but the kernel was found for a problem without")), "{said}");
    }
}

#[test]
fn an_append_is_checked_likewise() {
    let problem = fixture::problem();
    let runtime = runtime(problem);
    let of = call(&problem, Arrangement::OneBlock);
    let params = AppendParams {
        k: 0x1000,
        v: 0x2000,
        slot_mapping: 0x3000,
        status: 0x4000,
        k_data: of.k_data,
        k_scales: of.k_scales,
        v_data: of.v_data,
        v_scales: of.v_scales,
        k_stride_token: of.new_k_stride_token,
        k_stride_head: of.new_k_stride_head,
        v_stride_token: of.new_v_stride_token,
        v_stride_head: of.new_v_stride_head,
        k_data_page: of.k_data_page,
        k_data_head: of.k_data_head,
        k_data_token: of.k_data_token,
        k_scales_page: of.k_scales_page,
        k_scales_head: of.k_scales_head,
        k_scales_token: of.k_scales_token,
        v_data_page: of.v_data_page,
        v_data_head: of.v_data_head,
        v_data_token: of.v_data_token,
        v_scales_page: of.v_scales_page,
        v_scales_head: of.v_scales_head,
        v_scales_token: of.v_scales_token,
        tokens: 100,
        kv_heads: KV_HEADS,
        k_scale: 1.0,
        v_scale: 1.0,
    };
    let found =
        runtime.find(&Problem::Append(problem.append_problem()), &Shape::Append { tokens: 100, kv_heads: 8 }).unwrap();
    // SAFETY: no kernel was prepared, so nothing is launched.
    let launch = |params: &AppendParams| unsafe { runtime.append(&found, params, std::ptr::null_mut()) };
    let said = |params| launch(&params).unwrap_err().to_string();
    assert!(!matches!(launch(&params), Err(LaunchError::Call(_))), "{:?}", launch(&params));
    assert!(said(AppendParams { slot_mapping: 0x3004, ..params }).starts_with("slot_mapping is"));
    assert!(said(AppendParams { v: 0, ..params }).starts_with("v is null"));
    assert!(said(AppendParams { tokens: 200, ..params }).starts_with("tokens"));
    assert!(said(AppendParams { v_data_token: 8, ..params }).starts_with("v_data_token is 8"));
    // SAFETY: as above.
    let other = unsafe { runtime.decode(&found, &of, PLENTY, std::ptr::null_mut()) };
    assert!(matches!(other, Err(LaunchError::Call(CallError::Operation(_)))));
}
