//! Kernels that nobody here wrote: NVIDIA's CUDA samples, against plain code on the CPU.

use crate::{bytes_of, nvrtc};
use nvkv_emulator::{EmulationError, FaultKind, Memory, Module, launch};
use nvkv_tuner::gpu::Nvrtc;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A sample behind the prelude that stands for cooperative groups.
macro_rules! sample {
    ($name:literal) => {
        concat!(
            include_str!("../../emulator/tests/samples/prelude.cuh"),
            include_str!(concat!("../../emulator/tests/samples/", $name))
        )
    };
}

const TARGETS: [&str; 4] = ["sm_89", "sm_90a", "sm_100a", "sm_120a"];

/// One argument of a kernel.
#[derive(Clone, Copy)]
enum Argument {
    Pointer(u64),
    Word(u32),
    Float(f32),
}

/// Arguments as a launch lays them out.
fn arguments(all: &[Argument]) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for argument in all {
        let part = match argument {
            Argument::Pointer(address) => address.to_le_bytes().to_vec(),
            Argument::Word(word) => word.to_le_bytes().to_vec(),
            Argument::Float(value) => value.to_le_bytes().to_vec(),
        };
        bytes.resize(bytes.len().next_multiple_of(part.len()), 0);
        bytes.extend(part);
    }
    bytes
}

/// A compiled sample, its target, and device memory.
struct Sample {
    module: Module,
    target: &'static str,
    memory: Memory,
}

impl Sample {
    fn compiled(nvrtc: &Nvrtc, text: &str, target: &'static str) -> Self {
        let arch = format!("-arch={}", target.replace("sm_", "compute_"));
        let output = nvrtc.compile(text, "sample.cu", &[arch, "-lineinfo".to_string()]).expect("NVRTC runs");
        assert!(output.accepted, "{target}: {}", output.log);
        Self::parsed(&output.ptx, target)
    }

    fn parsed(ptx: &str, target: &'static str) -> Self {
        Self { module: Module::parse(ptx).expect("PTX"), target, memory: Memory::new() }
    }

    fn words(&mut self, words: &[u32]) -> u64 {
        self.memory.alloc_with(&bytes_of(words, u32::to_le_bytes))
    }

    /// Runs the kernel whose mangled name has `name` in it.
    fn run(
        &mut self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        all: &[Argument],
    ) -> Result<(), EmulationError> {
        let symbol = self.module.kernels().find(|symbol| symbol.contains(name)).expect("a kernel of that name");
        let (symbol, params) = (symbol.to_string(), arguments(all));
        launch(&self.module, &symbol, grid, block, shared, &params, &mut self.memory, self.target).map(|_| ())
    }

    fn read(&self, address: u64, count: usize) -> Vec<u32> {
        let bytes = self.memory.read(address, 4 * count).expect("an allocation");
        bytes.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
    }

    fn floats(&self, address: u64, count: usize) -> Vec<f32> {
        self.read(address, count).into_iter().map(f32::from_bits).collect()
    }
}

fn random(seed: u64, count: usize) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count).map(|_| rng.random()).collect()
}

use Argument::{Float, Pointer, Word};

#[test]
fn histogram_counts_every_byte() {
    let nvrtc = nvrtc();
    let data = random(1, 3000);
    let mut expected = vec![0u32; 256];
    data.iter().flat_map(|word| word.to_le_bytes()).for_each(|byte| expected[usize::from(byte)] += 1);
    for target in TARGETS {
        let mut sample = Sample::compiled(&nvrtc, sample!("histogram256.cu"), target);
        let (from, partial, to) = (sample.words(&data), sample.memory.alloc(4 * 256 * 5), sample.memory.alloc(4 * 256));
        let first = [Pointer(partial), Pointer(from), Word(data.len() as u32)];
        sample.run("18histogram256Kernel", [5, 1, 1], [192, 1, 1], 0, &first).unwrap();
        let second = [Pointer(to), Pointer(partial), Word(5)];
        sample.run("mergeHistogram256Kernel", [256, 1, 1], [256, 1, 1], 0, &second).unwrap();
        assert_eq!(sample.read(to, 256), expected, "{target}");
    }
}

#[test]
fn scan_adds_what_came_before() {
    let nvrtc = nvrtc();
    // 16 blocks of 1024 elements make one array.
    let data = random(2, 16 * 1024);
    for target in TARGETS {
        let mut sample = Sample::compiled(&nvrtc, sample!("scan.cu"), target);
        let (from, to) = (sample.words(&data), sample.memory.alloc(4 * data.len()));
        let tops = sample.memory.alloc(4 * 16);
        let (grid, block) = ([16, 1, 1], [256, 1, 1]);
        sample.run("scanExclusiveSharedP", grid, block, 0, &[Pointer(to), Pointer(from), Word(1024)]).unwrap();
        let second = [Pointer(tops), Pointer(to), Pointer(from), Word(16), Word(16)];
        sample.run("scanExclusiveShared2", [1; 3], block, 0, &second).unwrap();
        sample.run("uniformUpdate", grid, block, 0, &[Pointer(to), Pointer(tops)]).unwrap();
        let before = data.iter().scan(0u32, |sum, &x| Some(std::mem::replace(sum, sum.wrapping_add(x))));
        assert!(sample.read(to, data.len()).into_iter().eq(before), "{target}");
    }
}

#[test]
fn shuffled_scan_adds_up_across_warps_and_blocks() {
    let nvrtc = nvrtc();
    let data: Vec<u32> = random(3, 1024).into_iter().map(|x| x % 1000).collect();
    for target in TARGETS {
        let mut sample = Sample::compiled(&nvrtc, sample!("shfl_scan.cu"), target);
        let (at, sums) = (sample.words(&data), sample.memory.alloc(16));
        let first = [Pointer(at), Word(32), Pointer(sums)];
        sample.run("shfl_scan_test", [4, 1, 1], [256, 1, 1], 32, &first).unwrap();
        // Blocks after the first add the sums of those before.
        let totals = sample.read(sums, 4);
        let scanned: Vec<u32> = (0..4).map(|block| totals[..=block].iter().sum()).collect();
        let sums = sample.words(&scanned);
        let rest = [Pointer(at + 1024), Pointer(sums), Word(768)];
        sample.run("uniform_add", [3, 1, 1], [256, 1, 1], 0, &rest).unwrap();
        let inclusive = data.iter().scan(0, |sum, x| {
            *sum += x;
            Some(*sum)
        });
        assert!(sample.read(at, data.len()).into_iter().eq(inclusive), "{target}");
    }
}

#[test]
fn reductions_of_one_pass_and_of_two_agree_with_a_sum() {
    let nvrtc = nvrtc();
    // Integers: every order of additions gives the same.
    let data: Vec<f32> = random(4, 8192).into_iter().map(|x| (x % 1000) as f32).collect();
    let sum = |count: usize| data[..count].iter().sum::<f32>();
    for target in TARGETS {
        let mut sample = Sample::compiled(&nvrtc, sample!("reduction.cu"), target);
        let from = sample.words(&data.iter().map(|x| x.to_bits()).collect::<Vec<u32>>());
        let to = sample.memory.alloc(4 * 8);
        let all = [Pointer(from), Pointer(to), Word(8192)];
        sample.run("reduceMultiPass", [8, 1, 1], [128, 1, 1], 512, &all).unwrap();
        assert_eq!(sample.floats(to, 8).iter().sum::<f32>(), sum(8192), "{target}");
        // The last block to take a ticket adds up the others' sums.
        let to = sample.memory.alloc(4 * 7);
        let all = [Pointer(from), Pointer(to), Word(7000)];
        sample.run("reduceSinglePass", [7, 1, 1], [128, 1, 1], 512, &all).unwrap();
        assert_eq!(sample.floats(to, 1), [sum(7000)], "{target}");
    }
}

#[test]
fn barriers_and_fences_that_a_reduction_lacks_are_reported() {
    let nvrtc = nvrtc();
    let fault = |text: &str, kernel: &str, blocks: u32| {
        let mut sample = Sample::compiled(&nvrtc, text, "sm_90a");
        let (from, to) = (sample.words(&[1; 4096]), sample.memory.alloc(64));
        let all = [Pointer(from), Pointer(to), Word(4096)];
        match sample.run(kernel, [blocks, 1, 1], [128, 1, 1], 512, &all) {
            Err(EmulationError::Fault(fault)) => *fault,
            other => panic!("{other:?}"),
        }
    };
    let text = sample!("reduction.cu");
    let unsynchronised = text.replacen("        cg::sync(tile32);\n    }", "    }", 1);
    let found = fault(&unsynchronised, "reduceMultiPass", 1);
    assert!(matches!(found.kind, FaultKind::Race { .. }), "{found}");
    let unfenced = text.replacen("        __threadfence();\n", "", 1);
    let found = fault(&unfenced, "reduceSinglePass", 4);
    assert!(matches!(found.kind, FaultKind::BlockRace { .. }), "{found}");
}

/// Standard normal distribution by Abramowitz and Stegun 26.2.17, with an error of 7.5e-8.
fn normal(d: f64) -> f64 {
    let k = 1.0 / (1.0 + 0.231_641_9 * d.abs());
    let series =
        k * (0.319_381_53 + k * (-0.356_563_782 + k * (1.781_477_937 + k * (-1.821_255_978 + k * 1.330_274_429))));
    let tail = (-0.5 * d * d).exp() / (2.0 * std::f64::consts::PI).sqrt() * series;
    if d > 0.0 { 1.0 - tail } else { tail }
}

#[test]
fn option_prices_are_those_of_the_formula() {
    let nvrtc = nvrtc();
    let mut rng = StdRng::seed_from_u64(5);
    let mut column = |low: f32, high: f32| -> Vec<f32> { (0..512).map(|_| rng.random_range(low..high)).collect() };
    let (price, strike, years) = (column(5.0, 30.0), column(1.0, 100.0), column(0.25, 10.0));
    let (rate, volatility) = (0.02f32, 0.3f32);
    for target in TARGETS {
        let mut sample = Sample::compiled(&nvrtc, sample!("black_scholes.cu"), target);
        let inputs =
            [&price, &strike, &years].map(|x| sample.words(&x.iter().map(|x| x.to_bits()).collect::<Vec<_>>()));
        let (call, put) = (sample.memory.alloc(4 * 512), sample.memory.alloc(4 * 512));
        let mut all = vec![Pointer(call), Pointer(put)];
        all.extend(inputs.map(Pointer));
        all.extend([Float(rate), Float(volatility), Word(512)]);
        sample.run("BlackScholesGPU", [2, 1, 1], [128, 1, 1], 0, &all).unwrap();
        for (i, (call, put)) in sample.floats(call, 512).into_iter().zip(sample.floats(put, 512)).enumerate() {
            let [s, x, t, r, v] = [price[i], strike[i], years[i], rate, volatility].map(f64::from);
            let d1 = ((s / x).ln() + (r + 0.5 * v * v) * t) / (v * t.sqrt());
            let d2 = d1 - v * t.sqrt();
            let present = x * (-r * t).exp();
            let exact = s * normal(d1) - present * normal(d2);
            // f32 with approximate functions: a few parts in 10^6 of the largest term.
            assert!((f64::from(call) - exact).abs() < 1e-5 * (s + x), "{target} {i}: call {call}, not {exact}");
            assert!((f64::from(put) - (exact - s + present)).abs() < 1e-5 * (s + x), "{target} {i}: put {put}");
        }
    }
}

#[test]
fn tensor_core_gemm_multiplies() {
    let mut rng = StdRng::seed_from_u64(6);
    let (m, n, k) = (32, 48, 80);
    let mut integers = |count: usize, limit: i8| -> Vec<f32> {
        (0..count).map(|_| f32::from(rng.random_range(-limit..=limit))).collect()
    };
    let (a, b, c) = (integers(m * k, 4), integers(n * k, 4), integers(m * n, 100));
    for target in TARGETS {
        let mut sample = Sample::parsed(include_str!("../../emulator/tests/samples/tensor_core_gemm.ptx"), target);
        let halves = |values: &[f32]| bytes_of(values, |x| half::f16::from_f32(x).to_bits().to_le_bytes());
        let (a_at, b_at) = (sample.memory.alloc_with(&halves(&a)), sample.memory.alloc_with(&halves(&b)));
        let c_at = sample.words(&c.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        let d_at = sample.memory.alloc(4 * m * n);
        let sizes = [m, n, k].map(|size| Word(size as u32));
        let all = [&[a_at, b_at, c_at, d_at].map(Pointer)[..], &sizes, &[Float(2.0), Float(0.5)]].concat();
        sample.run("simple_wmma_gemm", [1, 3, 1], [64, 1, 1], 0, &all).unwrap();
        let d = sample.floats(d_at, m * n);
        for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let product: f32 = (0..k).map(|i| a[row * k + i] * b[column * k + i]).sum();
            let exact = 2.0 * product + 0.5 * c[row * n + column];
            assert_eq!(d[row * n + column], exact, "{target}: ({row}, {column})");
        }
    }
}
