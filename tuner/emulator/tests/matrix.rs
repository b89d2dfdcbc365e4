//! Matrices in shared memory: `ldmatrix`, `stmatrix`, and `wgmma` in all layouts, against element-wise products.

mod common;

use common::{fault, indices, line_of, try_run};
use half::{bf16, f16};
use nvkv_emulator::{FaultKind, Memory, Module, launch};
use nvkv_reference::codec::e4m3_encode;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Each of 32 lanes writes 16 bytes of row `lane` (four matrices below one another): the half at `(row, column)` is
/// `8 * row + column`.
const ROWS: &str = "mov.u32 %r5, room; shl.b32 %r4, %r0, 4; add.u32 %r4, %r4, %r5; mul.lo.u32 %r10, %r0, 0x80008;
    add.u32 %r10, %r10, 0x10000; add.u32 %r11, %r10, 0x20002; add.u32 %r12, %r11, 0x20002; add.u32 %r13, %r12, 0x20002;
    st.shared.v4.u32 [%r4], {%r10, %r11, %r12, %r13}; bar.warp.sync -1;\n";

fn element(row: u32, column: u32) -> u32 {
    8 * row + column
}

#[test]
fn ldmatrix_gives_each_lane_its_elements() {
    for (form, count) in [("x1", 1), ("x2", 2), ("x4", 4)] {
        for (trans, space) in [("", ".shared"), (".trans", ".shared::cta")] {
            for matrix in 0..count {
                let registers = (20..20 + count).map(|r| format!("%r{r}")).collect::<Vec<_>>().join(", ");
                let body = format!(
                    "{ROWS} ldmatrix.sync.aligned.m8n8.{form}{trans}{space}.b16 {{{registers}}}, [%r4];
                     mov.u32 %r9, %r{};",
                    20 + matrix
                );
                let expected = |lane: u32| {
                    let (row, column) = (lane / 4, 2 * (lane % 4));
                    match trans {
                        "" => element(8 * matrix + row, column) | element(8 * matrix + row, column + 1) << 16,
                        _ => element(8 * matrix + column, row) | element(8 * matrix + column + 1, row) << 16,
                    }
                };
                let out = try_run("sm_90a", &body, &indices(32)).unwrap();
                assert_eq!(out, (0..32).map(expected).collect::<Vec<u32>>(), "{form}{trans}, matrix {matrix}");
            }
        }
    }
}

#[test]
fn stmatrix_is_the_inverse_of_ldmatrix() {
    for trans in ["", ".trans"] {
        let body = format!(
            "{ROWS} ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r4];
             stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r4+1024], {{%r20, %r21, %r22, %r23}};
             bar.warp.sync -1; ld.shared.u32 %r9, [%r4+1028];"
        );
        let expected = |lane: u32| element(lane, 2) | element(lane, 3) << 16;
        assert_eq!(try_run("sm_90a", &body, &indices(32)).unwrap(), (0..32).map(expected).collect::<Vec<u32>>());
    }
}

#[test]
fn matrices_need_their_barrier_and_alignment() {
    let load = "\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r4];";
    let unsynchronised = ROWS.replace("bar.warp.sync -1;", "") + load;
    let found = fault(&unsynchronised, 32);
    assert!(matches!(found.kind, FaultKind::Race { .. }), "{found}");
    assert_eq!(found.line, line_of(&unsynchronised, "ldmatrix"));
    let misaligned = fault(&format!("{ROWS}{}", load.replace("[%r4]", "[%r4+4]")), 32);
    assert!(matches!(misaligned.kind, FaultKind::Misaligned { bytes: 16, .. }), "{misaligned}");
    let missing = fault(&format!("{ROWS} setp.lt.u32 %p1, %r0, 8; @%p1{load}"), 32);
    assert_eq!(missing.kind, FaultKind::MissingLanes { needed: u32::MAX, active: 255 });
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Type {
    E4M3,
    F16,
    Bf16,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::E4M3 => "e4m3",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    fn bytes(self) -> usize {
        if self == Self::E4M3 { 1 } else { 2 }
    }

    fn encode(self, value: f32) -> Vec<u8> {
        match self {
            Self::E4M3 => vec![e4m3_encode(value)],
            Self::F16 => f16::from_f32(value).to_bits().to_le_bytes().to_vec(),
            Self::Bf16 => bf16::from_f32(value).to_bits().to_le_bytes().to_vec(),
        }
    }
}

/// How a matrix lies: `swizzle` is the width of its rows in bytes, 16 for none.
#[derive(Clone, Copy, Debug)]
struct Layout {
    swizzle: usize,
    k_major: bool,
}

/// An image of `rows` rows of `k` elements in that layout, at a multiple of 1024 bytes, and its descriptor without the
/// start: built from whole tiles of 8 rows (or 8 values of K) by the figures of the PTX ISA, tile by tile.
fn image(matrix: &[Vec<f32>], kind: Type, layout: Layout) -> (Vec<u8>, u64) {
    let (rows, k) = (matrix.len(), matrix[0].len());
    let Layout { swizzle, k_major } = layout;
    // Lines of `swizzle` bytes hold elements along the inner dimension; 8 lines make an atom.
    let (outer, inner) = if k_major { (rows, k) } else { (k, rows) };
    let per_line = swizzle / kind.bytes();
    let atom = 8 * swizzle;
    let across = inner.div_ceil(per_line);
    let mut bytes = vec![0xFF; outer / 8 * across * atom];
    for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
        let value = if k_major { matrix[o][i] } else { matrix[i][o] };
        let tile = (o / 8 * across + i / per_line) * atom;
        let line = o % 8;
        let chunk = i % per_line * kind.bytes() / 16;
        let pattern = line * swizzle / 128 % (swizzle / 16);
        let at = tile + line * swizzle + (chunk ^ pattern) * 16 + i % per_line * kind.bytes() % 16;
        bytes[at..at + kind.bytes()].copy_from_slice(&kind.encode(value));
    }
    let (next_inner, next_outer) = (atom as u64, (across * atom) as u64);
    let (leading, stride) = match (k_major, swizzle) {
        (true, 16) => (next_inner, next_outer),
        (true, _) => (0, next_outer),
        (false, 16) => (next_outer, next_inner),
        (false, _) => (next_inner, next_outer),
    };
    let mode = match swizzle {
        128 => 1,
        64 => 2,
        32 => 3,
        _ => 0,
    };
    (bytes, leading >> 4 << 16 | stride >> 4 << 32 | mode << 62)
}

/// D = ±A B, with A from shared memory, in blocks of 64 x n.
struct Case {
    kind: Type,
    layouts: [Layout; 2],
    n: usize,
    signs: [i32; 2],
    fence: bool,
}

impl Case {
    fn ptx(&self, descriptors: [u64; 2], bytes: usize, b_at: usize) -> String {
        let Self { kind, n, signs, layouts, .. } = self;
        let name = kind.name();
        let d: Vec<String> = (0..n / 2).map(|i| format!("%d{i}")).collect();
        let transposes = match kind {
            Type::E4M3 => String::new(),
            _ => layouts.map(|l| format!(", {}", u8::from(!l.k_major))).concat(),
        };
        let stores: String = (0..n / 2).map(|i| format!("st.global.f32 [%rd5+{}], %d{i};\n", 4 * 128 * i)).collect();
        format!(
            ".version 9.0 .target sm_90a .address_size 64
             .visible .entry k(.param .u64 in, .param .u64 out) {{
             .reg .b32 %r<8>; .reg .f32 %d<{}>; .reg .b64 %rd<8>; .reg .pred %p<2>;
             .shared .align 1024 .b8 room[{bytes}];
             mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [in]; ld.param.u64 %rd1, [out]; mov.u32 %r1, room;
             shl.b32 %r2, %r0, 2; cvt.u64.u32 %rd2, %r2; add.u64 %rd2, %rd0, %rd2; add.u32 %r3, %r1, %r2;
             mov.u32 %r4, %r2;
             COPY: ld.global.u32 %r5, [%rd2]; st.shared.u32 [%r3], %r5; add.u64 %rd2, %rd2, 512;
             add.u32 %r3, %r3, 512; add.u32 %r4, %r4, 512; setp.lt.u32 %p0, %r4, {bytes}; @%p0 bra COPY;
             {} bar.sync 0;
             shr.u32 %r6, %r1, 4; cvt.u64.u32 %rd6, %r6; or.b64 %rd3, %rd6, {}; add.u32 %r6, %r1, {b_at};
             shr.u32 %r6, %r6, 4; cvt.u64.u32 %rd6, %r6; or.b64 %rd4, %rd6, {};
             setp.ne.u32 %p1, 0, 0; wgmma.fence.sync.aligned;
             wgmma.mma_async.sync.aligned.m64n{n}k{}.f32.{name}.{name} {{{}}}, %rd3, %rd4, %p1, {}, {}{transposes};
             wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
             cvt.u64.u32 %rd5, %r2; add.u64 %rd5, %rd1, %rd5;
             {stores} ret; }}",
            n / 2,
            if self.fence { "fence.proxy.async.shared::cta;" } else { "" },
            descriptors[0] as i64,
            descriptors[1] as i64,
            32 / kind.bytes(),
            d.join(", "),
            signs[0],
            signs[1],
        )
    }

    /// Rows of D, and of the plain product.
    fn run(&self) -> Result<[Vec<f32>; 2], nvkv_emulator::EmulationError> {
        let Self { kind, layouts, n, signs, .. } = self;
        let mut rng = StdRng::seed_from_u64(11);
        let mut integers = |rows: usize| -> Vec<Vec<f32>> {
            (0..rows).map(|_| (0..32 / kind.bytes()).map(|_| f32::from(rng.random_range(-8..=8i8))).collect()).collect()
        };
        let (a, b) = (integers(64), integers(*n));
        let (mut bytes, a_descriptor) = image(&a, *kind, layouts[0]);
        let b_at = bytes.len().next_multiple_of(1024);
        bytes.resize(b_at, 0);
        let (b_image, b_descriptor) = image(&b, *kind, layouts[1]);
        bytes.extend(b_image);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        let module = Module::parse(&self.ptx([a_descriptor, b_descriptor], bytes.len(), b_at))?;
        let mut memory = Memory::new();
        let (from, to) = (memory.alloc_with(&bytes), memory.alloc(4 * 64 * n));
        let params: Vec<u8> = [from, to].iter().flat_map(|address| address.to_le_bytes()).collect();
        launch(&module, "k", [1; 3], [128, 1, 1], 0, &params, &mut memory, "sm_90a")?;
        let out = memory.read(to, 4 * 64 * n)?;
        let word = |thread: usize, i: usize| {
            let at = 4 * (128 * i + thread);
            f32::from_le_bytes([out[at], out[at + 1], out[at + 2], out[at + 3]])
        };
        let (mut got, mut plain) = (Vec::new(), Vec::new());
        for row in 0..64 {
            for column in 0..*n {
                // PTX ISA, fragments of D: warps by 16 rows, then 8 x 8 blocks.
                let thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
                got.push(word(thread, column / 8 * 4 + row % 16 / 8 * 2 + column % 2));
                let sum: f32 = a[row].iter().zip(&b[column]).map(|(a, b)| a * b).sum();
                plain.push(sum * (signs[0] * signs[1]) as f32);
            }
        }
        Ok([got, plain])
    }
}

const SWIZZLES: [usize; 4] = [16, 32, 64, 128];

#[test]
fn products_of_small_integers_are_exact_in_every_layout() {
    let mut cases = Vec::new();
    for kind in [Type::E4M3, Type::F16, Type::Bf16] {
        for swizzle in SWIZZLES {
            for majors in [[true, true], [true, false], [false, true], [false, false]] {
                // FP8 is K-major; with M innermost 64 rows are one line of 128 bytes.
                if kind == Type::E4M3 && majors != [true, true] {
                    continue;
                }
                let layouts = majors.map(|k_major| Layout { swizzle, k_major });
                cases.push(Case { kind, layouts, n: 128, signs: [1, 1], fence: true });
            }
        }
    }
    let plain = [Layout { swizzle: 16, k_major: true }; 2];
    cases.extend([8, 24, 256].map(|n| Case { kind: Type::F16, layouts: plain, n, signs: [1, 1], fence: true }));
    cases.push(Case { kind: Type::E4M3, layouts: plain, n: 16, signs: [-1, 1], fence: true });
    cases.push(Case { kind: Type::Bf16, layouts: plain, n: 16, signs: [-1, -1], fence: true });
    for case in cases {
        let [got, plain] = case.run().unwrap();
        assert!(got == plain, "{:?} {:?} n {}", case.kind, case.layouts, case.n);
    }
}

#[test]
fn stored_operands_need_a_proxy_fence() {
    let layouts = [Layout { swizzle: 128, k_major: true }; 2];
    let case = Case { kind: Type::F16, layouts, n: 16, signs: [1, 1], fence: false };
    let Err(nvkv_emulator::EmulationError::Fault(fault)) = case.run() else { panic!("no fault") };
    assert!(matches!(fault.kind, FaultKind::ProxyFence { .. }), "{fault}");
    assert!(fault.opcode.starts_with("wgmma.mma_async"));
}

#[test]
fn operands_are_not_overwritten_before_the_wait() {
    let mma = "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f0, %f1, %f2, %f3}, {%r0, %r0, %r0, %r0}, %rd0, %p1, 1, 1;";
    let body = |wait: u32| {
        format!(
            "mov.u32 %r5, room; shl.b32 %r6, %r0, 2; add.u32 %r6, %r6, %r5; st.shared.u32 [%r6], %r0;
             fence.proxy.async; bar.sync 0; mov.u64 %rd0, {}; setp.ne.u32 %p1, 0, 0; wgmma.fence.sync.aligned; {mma}
             wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned {wait}; bar.sync 0;
             \nst.shared.u32 [%r6], %r0; mov.u32 %r9, 0;",
            1024u64 >> 4 | (128 >> 4) << 16 | (256 >> 4) << 32
        )
    };
    assert!(try_run("sm_90a", &body(0), &indices(128)).is_ok());
    let found = fault(&body(1), 128);
    assert!(matches!(found.kind, FaultKind::AsyncReading { .. }), "{found}");
}
