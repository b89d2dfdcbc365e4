//! The parent's side of a compile worker.

use super::request::{CompileRequest, Compiled};
use nvkv_spec::Outcome;
use std::time::Duration;

/// One compiler process, started at the first call. Give each rayon thread its own:
/// `sources.par_iter().map_init(|| CompileWorker::new(limit), |worker, source| worker.compile(source))`.
pub struct CompileWorker {}

impl CompileWorker {
    /// A worker whose calls may take `limit` each.
    pub fn new(_limit: Duration) -> Self {
        todo!()
    }

    /// Compiles one source. Fails with `CompileFailed`, `Timeout` or `Crashed`.
    pub fn compile(&mut self, _request: &CompileRequest) -> Result<Compiled, Outcome> {
        todo!()
    }
}
