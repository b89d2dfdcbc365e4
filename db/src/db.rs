//! The handle: one connection and the runtime that drives it.

use crate::{DbError, Failure, KernelKey, KernelRecord, NewRun, RunId, TrialId, TrialKey, TrialRecord};
use nvkv_spec::{GpuEnvironment, Target};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// An open database. Methods block; don't call them from async code.
pub struct Db {}

impl Db {
    /// Opens the database at `path` for tuning: makes the file and its folder where they are
    /// missing, checks an existing file, and brings its schema up to date.
    pub fn open(_path: &Path) -> Result<Self, DbError> {
        todo!()
    }

    /// Opens the database at `path` to look things up; nothing is written.
    pub fn open_read_only(_path: &Path) -> Result<Self, DbError> {
        todo!()
    }

    /// What the caller should tell the user about this database (a network file system).
    pub fn notices(&self) -> &[String] {
        todo!()
    }

    /// Starts a run.
    pub fn begin_run(&mut self, _run: &NewRun) -> Result<RunId, DbError> {
        todo!()
    }

    /// Stores what the run saw of its GPU: the read ceiling (GB/s) and the state (clocks, throttle
    /// reasons, temperature, other processes). Called again, the later values hold.
    pub fn note_gpu(
        &mut self,
        _run: RunId,
        _read_ceiling_gbps: f64,
        _state: &serde_json::Value,
    ) -> Result<(), DbError> {
        todo!()
    }

    /// Ends a run; `finished_at` in UTC, RFC 3339.
    pub fn finish_run(&mut self, _run: RunId, _finished_at: &str) -> Result<(), DbError> {
        todo!()
    }

    /// Says which kernels the run's space consists of now. Kernels of the same id with another
    /// source or NVRTC become stale: they stay, and win nothing. Call it before [`Self::winners`],
    /// or a resumed run that records nothing new leaves the last run's kernels in force.
    pub fn adopt(&mut self, _run: RunId, _kernels: &[KernelKey]) -> Result<(), DbError> {
        todo!()
    }

    /// Stores one trial with its kernel and samples, in one transaction: durable when it returns.
    pub fn record(&mut self, _run: RunId, _trial: &TrialRecord) -> Result<TrialId, DbError> {
        todo!()
    }

    /// The trials that need not be run again on this target and GPU, failures included.
    pub fn done(&self, _target: Target, _environment: Option<&GpuEnvironment>) -> Result<HashSet<TrialKey>, DbError> {
        todo!()
    }

    /// The kernel of this source and NVRTC, if it was ever recorded.
    pub fn kernel_by_source(&self, _target: Target, _key: &KernelKey) -> Result<Option<KernelRecord>, DbError> {
        todo!()
    }

    /// How many trials of a run ended how, by [`nvkv_spec::Outcome::kind`].
    pub fn outcomes(&self, _run: RunId) -> Result<BTreeMap<String, u64>, DbError> {
        todo!()
    }

    /// The failed trials of a run, with their reasons.
    pub fn failures(&self, _run: RunId) -> Result<Vec<Failure>, DbError> {
        todo!()
    }
}
