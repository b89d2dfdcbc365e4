//! Between rows and the types of this crate and of `nvkv-spec`.

use crate::{Compiled, KernelRecord};
use nvkv_spec::{CompileFacts, GpuEnvironment, KernelId, Outcome, Problem, Stage, Target, Variant};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StringDeserializer};
use sqlx::FromRow;

/// A row of the view `kernel_records`.
#[derive(FromRow)]
pub(crate) struct KernelRow {
    target: String,
    #[sqlx(json)]
    problem: Problem,
    #[sqlx(json)]
    variant: Variant,
    source_hash: String,
    nvrtc: String,
    generator: String,
    cubin_hash: Option<String>,
    registers: Option<u32>,
    static_shared: Option<u32>,
    spill_stores: Option<u32>,
    spill_loads: Option<u32>,
    stack: Option<u32>,
    cubin_bytes: Option<u32>,
    instructions: Option<u32>,
}

/// A row of the view `kernel_records` with the kernel's number.
#[derive(FromRow)]
pub(crate) struct NumberedKernelRow {
    pub kernel: i64,
    #[sqlx(flatten)]
    pub record: KernelRow,
}

impl KernelRow {
    pub(crate) fn record(self) -> Result<KernelRecord, sqlx::Error> {
        Ok(KernelRecord {
            target: target(&self.target)?,
            compiled: self.compiled(),
            problem: self.problem,
            variant: self.variant,
            source_hash: self.source_hash,
            nvrtc: self.nvrtc,
            generator: self.generator,
        })
    }

    /// The compiler's facts: all there or all null, by a CHECK.
    fn compiled(&self) -> Option<Compiled> {
        Some(Compiled {
            cubin_hash: self.cubin_hash.clone()?,
            facts: CompileFacts {
                registers: self.registers?,
                static_shared: self.static_shared?,
                spill_stores: self.spill_stores?,
                spill_loads: self.spill_loads?,
                stack: self.stack?,
                cubin_bytes: self.cubin_bytes?,
                instructions: self.instructions?,
            },
        })
    }
}

/// Columns of a row of `environments`.
#[derive(FromRow)]
pub(crate) struct EnvironmentRow {
    uuid: String,
    driver: String,
    name: String,
    capability_major: u32,
    capability_minor: u32,
    sms: u32,
    l2_bytes: i64,
    memory_bytes: i64,
    max_sm_clock: u32,
    max_memory_clock: u32,
}

impl From<EnvironmentRow> for GpuEnvironment {
    fn from(row: EnvironmentRow) -> Self {
        Self {
            name: row.name,
            uuid: row.uuid,
            capability: (row.capability_major, row.capability_minor),
            sms: row.sms,
            l2_bytes: row.l2_bytes.unsigned_abs(),
            memory_bytes: row.memory_bytes.unsigned_abs(),
            driver: row.driver,
            max_sm_clock: row.max_sm_clock,
            max_memory_clock: row.max_memory_clock,
        }
    }
}

/// The fields of an [`Outcome`] as columns of `trials`.
#[derive(FromRow, Default)]
pub(crate) struct OutcomeRow {
    pub(crate) outcome: String,
    pub(crate) stage: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) error: Option<f64>,
    pub(crate) cases: Option<u32>,
    pub(crate) limit_s: Option<f64>,
    pub(crate) predicted_us: Option<f64>,
}

impl From<&Outcome> for OutcomeRow {
    fn from(outcome: &Outcome) -> Self {
        let mut row = Self { outcome: outcome.kind().into(), ..Self::default() };
        match outcome {
            Outcome::CompileFailed { log } => row.message = Some(log.clone()),
            Outcome::CompiledOnly { predicted_us } => row.predicted_us = Some(*predicted_us),
            Outcome::Emulated { error, cases } => {
                row.error = Some(*error);
                row.cases = Some(*cases);
            }
            Outcome::Faulted { detail } => row.message = Some(detail.clone()),
            Outcome::LaunchFailed { error } => row.message = Some(error.clone()),
            Outcome::Wrong { error, detail } => {
                row.error = Some(*error); // SQLite stores a NaN as null
                row.message = Some(detail.clone());
            }
            Outcome::Timeout { stage, seconds } => {
                row.stage = Some(stage.to_string());
                row.limit_s = Some(*seconds);
            }
            Outcome::Crashed { stage, detail } => {
                row.stage = Some(stage.to_string());
                row.message = Some(detail.clone());
            }
            Outcome::Timed { error } => row.error = Some(*error),
        }
        row
    }
}

impl OutcomeRow {
    pub(crate) fn outcome(self) -> Result<Outcome, sqlx::Error> {
        let message = self.message.unwrap_or_default();
        let stage = || self.stage.as_deref().unwrap_or_default().parse::<Stage>().map_err(|e| undecodable("stage", e));
        Ok(match self.outcome.as_str() {
            "compile_failed" => Outcome::CompileFailed { log: message },
            "compiled_only" => Outcome::CompiledOnly { predicted_us: self.predicted_us.unwrap_or(f64::NAN) },
            "emulated" => {
                Outcome::Emulated { error: self.error.unwrap_or(f64::NAN), cases: self.cases.unwrap_or_default() }
            }
            "faulted" => Outcome::Faulted { detail: message },
            "launch_failed" => Outcome::LaunchFailed { error: message },
            "wrong" => Outcome::Wrong { error: self.error.unwrap_or(f64::NAN), detail: message },
            "timeout" => Outcome::Timeout { stage: stage()?, seconds: self.limit_s.unwrap_or(f64::NAN) },
            "crashed" => Outcome::Crashed { stage: stage()?, detail: message },
            "timed" => Outcome::Timed { error: self.error.unwrap_or(f64::NAN) },
            other => return Err(undecodable("outcome", format!("unknown outcome `{other}`"))),
        })
    }
}

/// A kernel id as stored.
pub(crate) fn kernel_id(text: String) -> Result<KernelId, sqlx::Error> {
    let text: StringDeserializer<ValueError> = text.into_deserializer();
    KernelId::deserialize(text).map_err(|e| undecodable("kernel_id", e))
}

/// A target as stored.
pub(crate) fn target(text: &str) -> Result<Target, sqlx::Error> {
    text.parse().map_err(|e| undecodable("target", e))
}

/// The error of a column whose text is not what it should be.
pub(crate) fn undecodable(column: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.into(), source: source.into() }
}
