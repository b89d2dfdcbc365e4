//! A GPU worker for tests: a process like the real one, that fails where it is told to. Needs Python 3.

use super::request::{MeasureReport, VerifyReport};
use super::{GpuWorker, Limits};
use crate::gpu::GpuState;
use nvkv_spec::{GpuEnvironment, KernelId, Outcome, Shape};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// Where a worker fails.
#[derive(Clone, Debug)]
pub enum At {
    /// Verifying this kernel.
    Verify(KernelId),
    /// Measuring this kernel, whichever are measured beside it.
    Measure(KernelId),
    /// Measuring at this shape.
    Shape(Shape),
    /// Measuring this kernel at this shape.
    Launch(KernelId, Shape),
}

/// How it does.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It only takes so long, µs; at a launch.
    Takes(f64),
    /// The process dies.
    Crash,
    /// No answer comes.
    Hang,
    /// Something else than an answer comes.
    Garbage,
    /// The process dies, and no other finds the device.
    Gone,
    /// The driver says why, and the process goes on.
    Refused(Outcome),
    /// The driver says why, and the process ends: its context is lost.
    Lost(Outcome),
}

/// How long a fake may take: an answer takes milliseconds, unless the cores are busy with other tests.
pub const LIMIT: Duration = Duration::from_secs(2);

/// A worker in `folder` that reads a ceiling of 4,000 GB/s, at which plain transfers go, takes 10 µs for every call, and
/// else is or fails so.
pub fn worker(folder: &Path, environment: &GpuEnvironment, faults: &[(At, Fault)]) -> GpuWorker {
    let place = |at: &At| match at {
        At::Verify(id) => format!("verify {id}"),
        At::Measure(id) => format!("measure {id}"),
        At::Shape(Shape::Append { tokens, .. }) => format!("measure {tokens} tokens"),
        At::Launch(id, Shape::Append { tokens, .. }) => format!("{id} at {tokens} tokens"),
        At::Shape(Shape::Decode { .. }) | At::Launch(_, Shape::Decode { .. }) => unimplemented!("fakes append"),
    };
    let how = |fault: &Fault| match fault {
        Fault::Takes(us) => json!(us),
        Fault::Crash => json!("crash"),
        Fault::Hang => json!("hang"),
        Fault::Garbage => json!("garbage"),
        Fault::Gone => json!("gone"),
        Fault::Refused(outcome) => json!({ "outcome": outcome, "last": false }),
        Fault::Lost(outcome) => json!({ "outcome": outcome, "last": true }),
    };
    let (before, after) = (GpuState::default(), GpuState::default());
    let measured = MeasureReport {
        candidates: vec![Ok(vec![10.0])],
        read_ceiling_gbps: 4000.0,
        before,
        after,
        sentinel_us: Some(20.0),
        retaken: 0,
        missing: 0,
    };
    let plan = json!({
        "environment": environment,
        "verified": VerifyReport { max_error: 1e-4, cases: 3 },
        "measured": measured,
        "faults": faults.iter().map(|(at, fault)| (place(at), how(fault))).collect::<serde_json::Map<String, Value>>(),
    });
    let program = folder.join("fake.py");
    std::fs::write(folder.join("plan.json"), plan.to_string()).unwrap();
    let _ = std::fs::remove_file(folder.join("gone"));
    if !program.exists() {
        std::fs::write(&program, include_str!("fake.py")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    }
    GpuWorker::of_binary(program, 0, Limits { device: Duration::from_secs(10), verify: LIMIT, measure: LIMIT })
}
