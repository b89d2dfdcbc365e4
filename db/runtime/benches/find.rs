//! What an engine waits for: opening a bundle of 100,000 rows, and finding a kernel, for the first time and again.

use criterion::{Criterion, criterion_group, criterion_main};
use nvkv_runtime::bundle::Manifest;
use nvkv_runtime::spec::{DecodeProblem, Lengths, Problem, Shape};
use nvkv_runtime::{Runtime, fixture};
use std::hint::black_box;

/// `problems` decode problems with `rows / problems` timed shapes each.
fn bundle(problems: usize, rows: usize) -> Manifest {
    let axes = [8, 16, 32, 64, 128]
        .into_iter()
        .flat_map(|page_size| (1..=16).flat_map(move |group| (1..=8).map(move |q_len| (page_size, group, q_len))));
    let problem =
        |(page_size, group, q_len)| Problem::Decode(DecodeProblem { page_size, group, q_len, ..fixture::problem() });
    let shapes = (0..).flat_map(|step| {
        [1, 2, 4, 8].into_iter().flat_map(move |kv_heads| {
            (0..10).map(move |power| Shape::Decode {
                batch: 1 << power,
                context: 512 * (step + 1),
                kv_heads,
                lengths: Lengths::Equal,
            })
        })
    });
    let shapes: Vec<_> = shapes.take(rows / problems).collect();
    let kernel = |axes| {
        let mut kernel = fixture::kernel(problem(axes), 16, true);
        shapes.iter().for_each(|&shape| fixture::select(&mut kernel, shape, 8));
        // Measured numbers have all their digits.
        for selection in &mut kernel.selections {
            let measured = [&mut selection.median_us, &mut selection.gbps, &mut selection.share_of_read_ceiling];
            measured.into_iter().chain([&mut selection.default_median_us]).flatten().for_each(|x| *x *= 1.0 / 0.987);
            selection.near_ties = Some(4);
        }
        kernel
    };
    fixture::manifest(axes.take(problems).map(kernel).collect())
}

fn open(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fixture::write(folder.path(), &bundle(100, 100_000)).expect("a bundle");
    let mut group = c.benchmark_group("open");
    group.sample_size(20);
    group.bench_function("100,000 rows", |b| b.iter(|| Runtime::open(folder.path(), None).expect("a runtime")));
    group.finish();
}

fn find(c: &mut Criterion) {
    for (name, problems) in [("1,000 shapes a problem", 100), ("100,000 shapes a problem", 1)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fixture::write(folder.path(), &bundle(problems, 100_000)).expect("a bundle");
        let runtime = Runtime::open(folder.path(), None).expect("a runtime");
        let problem = runtime.problems()[problems / 2];
        let mut group = c.benchmark_group(format!("find, {name}"));
        let again = Shape::Decode { batch: 24, context: 10_000, kv_heads: 8, lengths: Lengths::Equal };
        group.bench_function("again", |b| {
            b.iter(|| runtime.find(black_box(&problem), black_box(&again)).map(|f| f.launch))
        });
        // Longer by a token each time, as decoding goes: never the same shape.
        let mut context = 1;
        group.bench_function("first", |b| {
            b.iter(|| {
                context += 1;
                let shape = Shape::Decode { batch: 24, context, kv_heads: 8, lengths: Lengths::Equal };
                runtime.find(black_box(&problem), black_box(&shape)).map(|f| f.launch)
            })
        });
        group.finish();
    }
}

criterion_group!(benches, open, find);
criterion_main!(benches);
