//! What the steps of a run cost, for the plan and for the ETA. Measured constants, rounded up; the
//! ETA corrects itself as the run goes.

/// One compile on one core, ms. Measured: the quick preset of sm_100a, 41 kernels in 24 s on 2 x86-64 cores.
pub const COMPILE_MS: u64 = 1_200;
/// One quick verification, its reference attention on the CPU included, ms.
pub const VERIFY_MS: u64 = 800;
/// One trial beside its samples: module load, graph capture, warm-up, ms.
pub const TRIAL_MS: u64 = 25;
/// One sample: the L2 flush and a replay, ms.
pub const SAMPLE_MS: u64 = 2;
/// Launches compared at a shape that is held out. Counted: 4,820 at the 423 shapes between the buckets of a standard tune of
/// an H200.
pub const HELD_OUT_LAUNCHES: usize = 12;
/// One prediction with its row in the database, ms.
pub const PREDICT_MS: u64 = 3;
/// The quick cases of one kernel in the emulator on one core, ms. Measured: 24 s for the nine winners of sm_100a.
pub const EMULATE_MS: u64 = 2_700;
/// A kernel on disk: source, PTX and cubin, bytes. Measured: 275,000 over the same 41.
pub const KERNEL_BYTES: u64 = 280_000;
/// A trial in the database, samples included, bytes.
pub const TRIAL_BYTES: u64 = 1_500;
