//! What is found at which shape, how it is launched, and what is said where nothing is.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use nvkv_runtime::bundle::{self, Manifest};
use nvkv_runtime::spec::{
    AppendMode, DecodeProblem, KvFormat, Lengths, Numerics, Problem, Shape, SplitPolicy, Target, VScaleOrder,
};
use nvkv_runtime::{Miss, NEAR, Runtime, Trust, fixture};

fn opened(manifest: &Manifest) -> Runtime {
    let folder = tempfile::tempdir().unwrap();
    fixture::write(folder.path(), manifest).unwrap();
    Runtime::open(folder.path(), None).unwrap()
}

fn decode(batch: u32, context: u32) -> Shape {
    Shape::Decode { batch, context, kv_heads: 8, lengths: Lengths::Equal }
}

fn problem() -> Problem {
    Problem::Decode(fixture::problem())
}

#[test]
fn a_tuned_shape_is_served_exactly() {
    let runtime = opened(&fixture::small());
    let found = runtime.find(&problem(), &decode(8, 8192)).unwrap();
    assert_eq!(found.trust, Trust::Exact);
    assert_eq!(found.kernel.id, fixture::small().kernels[0].id);
    // 64 / 8 even splits; counters, then a state of 4,352 bytes a split, KV head and request.
    assert_eq!((found.launch.grid, found.launch.max_splits, found.launch.min_split_tokens), ([8, 8, 8], 8, 1));
    assert_eq!(found.launch.workspace_bytes, (1 << 20) + 8 * 8 * 8 * 4352);
}

#[test]
fn the_nearest_tuned_shape_serves_with_its_split_and_this_shapes_grid() {
    let runtime = opened(&fixture::small());
    let found = runtime.find(&problem(), &decode(16, 16_384)).unwrap();
    assert_eq!(found.trust, Trust::Bucket { distance: 2.0, regret: None });
    // 8 parts won for 8 requests: 4 for 16 are as many blocks.
    assert_eq!(found.launch.grid, [8, 16, 4]);
    assert_eq!(found.kernel.id, fixture::small().kernels[0].id, "batch 8 is nearer to 16 than 64");
    let mut manifest = fixture::small();
    manifest.kernels[0].selections[4].regret = Some(0.03);
    let Trust::Bucket { regret, .. } = opened(&manifest).find(&problem(), &decode(16, 16_384)).unwrap().trust else {
        panic!()
    };
    assert_eq!(regret, Some(0.03));
}

/// A row tile is a block as a KV head is: of as many blocks as won, and up to twice, those that leave the fewest SMs idle.
#[test]
fn the_blocks_of_all_row_tiles_are_counted_when_a_split_changes() {
    for (row_tiles, splits) in [(1, 4), (2, 3)] {
        let mut manifest = fixture::small();
        manifest.kernels.iter_mut().for_each(|kernel| kernel.selections.clear());
        manifest.kernels[0].launch.row_tiles = row_tiles;
        fixture::select(&mut manifest.kernels[0], decode(64, 16_384), 1);
        let runtime = opened(&manifest);
        let found = runtime.find(&problem(), &decode(35, 10_624)).unwrap();
        assert_eq!(found.launch.grid, [8 * row_tiles, 35, splits]);
    }
}

#[test]
fn far_from_every_tuned_shape_the_default_variant_fills_the_device() {
    let runtime = opened(&fixture::small());
    let far = decode(1, 1 << 20);
    assert!(decode(1, 65_536).distance(&far).unwrap() > NEAR);
    let found = runtime.find(&problem(), &far).unwrap();
    assert_eq!(found.trust, Trust::Fallback);
    assert_eq!(found.kernel.id, fixture::small().kernels[1].id);
    // 132 SMs of an H200, 2 blocks each, over 8 KV heads.
    assert_eq!((found.launch.max_splits, found.launch.min_split_tokens), (33, 1));
    // Where the default kernel failed, the nearest serves: 64 parts won, 66 are four blocks for each of 132 SMs.
    let mut manifest = fixture::small();
    manifest.kernels[1].is_default = false;
    let runtime = opened(&manifest);
    let found = runtime.find(&problem(), &far).unwrap();
    assert_eq!((found.trust, found.launch.max_splits), (Trust::Fallback, 66));
}

#[test]
fn what_was_timed_comes_before_what_is_predicted() {
    let mut manifest = fixture::small();
    for selection in manifest.kernels.iter_mut().flat_map(|kernel| &mut kernel.selections) {
        selection.trust = bundle::Trust::Predicted;
        (selection.predicted_us, selection.median_us) = (selection.median_us, None);
    }
    assert_eq!(opened(&manifest).find(&problem(), &decode(8, 8192)).unwrap().trust, Trust::Predicted { distance: 0.0 });
    let first = &mut manifest.kernels[0].selections[0];
    (first.trust, first.median_us) = (bundle::Trust::Timed, Some(1.0));
    let found = opened(&manifest).find(&problem(), &decode(1, 8192)).unwrap().trust;
    assert_eq!(found, Trust::Bucket { distance: 3.0, regret: None });
}

#[test]
fn kernels_tuned_at_another_window_serve_where_the_bundle_lacks_it() {
    let windowed = |window| Problem::Decode(DecodeProblem { window: Some(window), sinks: true, ..fixture::problem() });
    let mut kernels = [128, 4096].map(|window| fixture::kernel(windowed(window), 16, true));
    let (shape, far) = (decode(8, 8192), decode(8, 1 << 17));
    kernels.iter_mut().for_each(|kernel| fixture::select(kernel, shape, 4));
    kernels[1].selections[0].split = Some(SplitPolicy::Chunk { tokens: 512, taper: 0 });
    let runtime = opened(&fixture::manifest(kernels.into()));
    let at = |window, shape| runtime.find(&windowed(window), &shape).unwrap();

    assert_eq!((at(128, shape).trust, at(4096, shape).trust), (Trust::Exact, Trust::Exact));
    // Half or a quarter as long is one or two doublings away, beside those of the shape.
    for (window, kernel, distance) in [(256, 0, 1.0), (1024, 1, 2.0), (8192, 1, 1.0)] {
        let found = at(window, shape);
        assert_eq!((found.index(), found.trust), (kernel, Trust::Bucket { distance, regret: None }), "{window}");
    }
    assert_eq!(
        (at(4096, shape).launch.max_splits, at(8192, shape).launch.max_splits),
        (8, 16),
        "chunks of what is seen"
    );
    assert_eq!(at(256, decode(16, 8192)).trust, Trust::Bucket { distance: 2.0, regret: None });
    // The default variant splits what a query sees at the window asked for: 65,536 tokens by 64, or one wave of
    // 132 SMs x 2 blocks over 64 requests' KV heads; of 64 tokens, one block.
    assert_eq!((at(1 << 16, far).trust, at(1 << 16, far).launch.max_splits), (Trust::Fallback, 4));
    assert_eq!((at(4, shape).trust, at(4, shape).launch.max_splits), (Trust::Fallback, 1));

    let explained = runtime.explain(&windowed(256), &shape);
    assert_eq!((explained.tuned_window, explained.nearest[0].distance), (Some(128), 1.0));
    assert!(explained.to_string().contains("tuned at 128, the nearest"), "{explained}");
    assert!(explained.tune_with.contains("--window 256 --sinks"), "{explained}");
    assert_eq!(runtime.explain(&windowed(128), &shape).tuned_window, None);

    // Nothing else may differ, and a kernel without a window has no code for one.
    let Problem::Decode(p) = windowed(256) else { unreachable!() };
    for other in [
        DecodeProblem { window: None, ..p },
        DecodeProblem { sinks: false, ..p },
        DecodeProblem { soft_cap: true, ..p },
        DecodeProblem { q_len: 2, ..p },
    ] {
        assert!(matches!(runtime.find(&Problem::Decode(other), &shape), Err(Miss::NoKernel { .. })), "{other:?}");
    }
}

#[test]
fn an_append_is_found_by_its_tokens() {
    let runtime = opened(&fixture::small());
    let append = Problem::Append(fixture::problem().append_problem());
    let found = runtime.find(&append, &Shape::Append { tokens: 100, kv_heads: 8 }).unwrap();
    // 100 tokens of 8 blocks of 16 elements, K and V, 128 blocks a thread block.
    assert_eq!((found.launch.grid, found.launch.workspace_bytes), ([7, 8, 1], 0));
}

#[test]
fn a_launch_that_the_workspace_cannot_count_is_not_split() {
    // 32,768 requests of 8 KV heads take all 262,144 counters of a workspace's first MiB.
    let mut manifest = fixture::small();
    fixture::select(&mut manifest.kernels[0], decode(32_768, 1024), 4);
    let runtime = opened(&manifest);
    let found = runtime.find(&problem(), &decode(32_768, 1024)).unwrap();
    assert_eq!((found.trust, found.launch.max_splits), (Trust::Exact, 4));
    let found = runtime.find(&problem(), &decode(40_000, 1024)).unwrap();
    assert!(matches!(found.trust, Trust::Bucket { .. }));
    assert_eq!((found.launch.max_splits, found.launch.workspace_bytes), (1, 0));
}

#[test]
fn where_a_kernel_cannot_be_launched_so_large_another_is_found() {
    // Two row tiles a KV head reach the grid's limit where one does not.
    let mut manifest = fixture::small();
    manifest.kernels[0].launch.row_tiles = 2;
    let runtime = opened(&manifest);
    let shape = Shape::Decode { batch: 8, context: 8192, kv_heads: 1_500_000_000, lengths: Lengths::Equal };
    let found = runtime.find(&problem(), &shape).unwrap();
    assert_eq!((found.kernel.id.as_str(), found.launch.grid[0]), (manifest.kernels[1].id.as_str(), 1_500_000_000));
    let miss = runtime
        .find(&problem(), &Shape::Decode { batch: 8, context: 8192, kv_heads: 3_000_000_000, lengths: Lengths::Equal })
        .unwrap_err();
    assert!(
        matches!(miss, Miss::TooLarge { found: 3_000_000_000 | 4_294_967_295, limit: 2_147_483_647, .. }),
        "{miss}"
    );
}

#[test]
fn a_miss_says_why_and_what_next() {
    let runtime = opened(&fixture::small());
    let other = Problem::Decode(DecodeProblem { head_dim: 64, ..fixture::problem() });
    let miss = runtime.find(&other, &decode(8, 8192)).unwrap_err();
    let Miss::NoKernel { nearest, target, .. } = &miss else { panic!("{miss}") };
    assert_eq!((*nearest, *target), (Some(problem()), Target::Sm90a));
    let said = miss.to_string();
    assert!(said.contains("--head-dim 64") && said.contains("--batch 8 --context 8192 --kv-heads 8"), "{said}");

    let exact = Problem::Decode(DecodeProblem { numerics: Numerics::Exact, ..fixture::problem() });
    assert!(runtime.find(&exact, &decode(8, 8192)).is_err(), "another numerics class computes something else");
    let shape = Shape::Append { tokens: 8, kv_heads: 8 };
    assert!(matches!(runtime.find(&problem(), &shape), Err(Miss::OtherOperation { .. })));
    assert!(matches!(runtime.find(&problem(), &decode(0, 8)), Err(Miss::Empty(_))));
    assert!(runtime.find(&problem(), &decode(1, 0)).is_ok(), "an empty cache is a launch like any other");
}

#[test]
fn a_cache_without_block_scales_has_no_order_of_them() {
    let fp8 = DecodeProblem { kv_format: KvFormat::Fp8E4m3, ..fixture::problem() };
    let runtime = opened(&fixture::manifest(vec![fixture::kernel(Problem::Decode(fp8), 16, true)]));
    let asked = Problem::Decode(DecodeProblem { v_scale_order: VScaleOrder::Interleaved4, ..fp8 });
    assert_eq!(runtime.find(&asked, &decode(1, 1)).unwrap().trust, Trust::Fallback);
    let asked = Problem::Decode(DecodeProblem { v_scale_order: VScaleOrder::Interleaved4, ..fixture::problem() });
    assert!(opened(&fixture::small()).find(&asked, &decode(1, 1)).is_err(), "a mix-up gives wrong results silently");
}

#[test]
fn an_explanation_lists_what_is_near_and_what_would_be_needed() {
    let runtime = opened(&fixture::small());
    let near = runtime.explain(&problem(), &decode(8, 9000));
    assert_eq!((near.nearest[0].shape, near.nearest.len()), (decode(8, 8192), 5));
    assert!(near.nearest.windows(2).all(|pair| pair[0].distance <= pair[1].distance));
    let text = near.to_string();
    assert!(text.contains("bucket") && text.contains("12.5 µs") && text.contains("nvkv-tune --arch sm_90a"), "{text}");
    assert_eq!(serde_json::to_value(&near).unwrap()["trust"], "bucket");

    let fused = Problem::Decode(DecodeProblem { append: AppendMode::Fused, ..fixture::problem() });
    let miss = runtime.explain(&fused, &decode(8, 8192));
    assert_eq!((miss.trust, miss.nearest_problem.as_deref()), (None, Some(problem().key().as_str())));
    assert!(miss.instead.as_deref().is_some_and(|text| text.starts_with("append-nvfp4")), "{miss}");
    assert!(runtime.shape_histogram().shapes.is_empty(), "asking why is not traffic");
}

#[test]
fn traffic_is_counted_by_rounded_shape_and_how_it_was_served() {
    let runtime = opened(&fixture::small());
    for context in 8000..8010 {
        runtime.find(&problem(), &decode(8, context)).unwrap();
        runtime.find(&problem(), &decode(8, context)).unwrap();
    }
    runtime.find(&problem(), &decode(8, 8192)).unwrap();
    let other = Problem::Decode(DecodeProblem { head_dim: 64, ..fixture::problem() });
    runtime.find(&other, &decode(8, 8192)).unwrap_err();
    let histogram = runtime.shape_histogram();
    let counted: Vec<_> = histogram.shapes.iter().map(|a| (a.problem, a.shape, a.served.as_str(), a.count)).collect();
    let at = decode(8, 8192);
    assert_eq!(
        counted,
        [(problem(), at, "bucket", 20), (other, at, "miss", 1), (problem(), at, "exact", 1)],
        "the most asked for first"
    );
    let json = serde_json::to_string(&histogram).unwrap();
    assert_eq!(serde_json::from_str::<nvkv_runtime::Histogram>(&json).unwrap(), histogram);
}

#[test]
fn what_is_remembered_and_counted_is_bounded() {
    let runtime = opened(&fixture::small());
    let asks = 60_000;
    for kv_heads in 1..=asks {
        runtime
            .find(&problem(), &Shape::Decode { batch: 1, context: 1024, kv_heads, lengths: Lengths::Equal })
            .unwrap();
    }
    let histogram = runtime.shape_histogram();
    assert!(histogram.shapes.len() <= 1 << 14 && histogram.others > 0);
    let told_apart: u64 = histogram.shapes.iter().map(|asked| asked.count).sum();
    assert_eq!(told_apart + histogram.others, u64::from(asks), "nothing is lost");
}

#[test]
fn many_threads_find_the_same_and_every_ask_is_counted() {
    let runtime = opened(&fixture::small());
    let expected: Vec<_> = (1..200).map(|b| runtime.explain(&problem(), &decode(b, 40 * b)).kernel).collect();
    const THREADS: u32 = 16;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (runtime, expected) = (&runtime, &expected);
            scope.spawn(move || {
                for i in 0..199u32 {
                    let batch = (i + 13 * thread) % 199 + 1;
                    let found = runtime.find(&problem(), &decode(batch, 40 * batch)).unwrap();
                    assert_eq!(Some(found.kernel.id.to_string()), expected[batch as usize - 1]);
                    assert_eq!(found.launch.grid[1], batch);
                }
            });
        }
    });
    let counts: u64 = runtime.shape_histogram().shapes.iter().map(|asked| asked.count).sum();
    assert_eq!(counts, u64::from(THREADS) * 199);
}
