//! The GPU worker's work: one device, its probe, and the requests it answers.

use super::frame::Reply;
use super::request::{MeasureReport, MeasureRequest, VerifyReport, VerifyRequest};
use super::serve::serve;
use crate::gpu::{Device, GpuState, Nvml};
use crate::measure::Measurer;
use crate::verify::{Failure, Verifier};
use nvkv_spec::{GpuEnvironment, Outcome, Stage, Traffic};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::rc::Rc;

/// What a GPU worker is asked.
#[derive(Serialize, Deserialize)]
pub(super) enum GpuRequest {
    Environment,
    State,
    ReadCeiling,
    /// A plain kernel that moves so many bytes; `samples` times at each grid.
    Transfer {
        traffic: Traffic,
        samples: u32,
    },
    Verify(VerifyRequest),
    Measure(MeasureRequest),
}

/// What it answers, variant by variant.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum GpuAnswer {
    Environment(GpuEnvironment),
    State(GpuState),
    ReadCeiling(f64),
    Transferred(Option<f64>),
    Verified(VerifyReport),
    Measured(MeasureReport),
    /// No GPU can be used: why, and what mends it.
    Unavailable(String),
    /// This request failed.
    Failed(Outcome),
}

/// The hidden subcommand `worker gpu --device N`: answers GPU requests until stdin closes.
pub fn gpu_main(device: u32) -> ExitCode {
    let mut session = None;
    serve(move |request: GpuRequest| {
        let session = session.get_or_insert_with(|| Session::open(device));
        match session {
            Ok(session) => session.answer(request),
            Err(why) => Reply { answer: GpuAnswer::Unavailable(why.clone()), last: true },
        }
    })
}

struct Session {
    device: Rc<Device>,
    nvml: Option<Rc<Nvml>>,
    verifier: Verifier,
    measurer: Option<Measurer>,
}

impl Session {
    fn open(ordinal: u32) -> Result<Self, String> {
        let device = Rc::new(Device::open(ordinal).map_err(|error| error.to_string())?);
        // Without NVML, environment and state say less; nothing else depends on it.
        let nvml = device.uuid().ok().and_then(|uuid| Nvml::open(uuid).ok()).map(Rc::new);
        Ok(Self { verifier: Verifier::new(device.clone()), device, nvml, measurer: None })
    }

    fn answer(&mut self, request: GpuRequest) -> Reply<GpuAnswer> {
        let stage = match request {
            GpuRequest::Verify(_) => Stage::Verify,
            _ => Stage::Measure,
        };
        match self.run(request) {
            Ok(answer) => Reply { answer, last: false },
            Err(failure) => {
                let last = matches!(&failure, Failure::Cuda(error) if error.sticky);
                Reply { answer: GpuAnswer::Failed(failure.outcome(stage)), last }
            }
        }
    }

    fn run(&mut self, request: GpuRequest) -> Result<GpuAnswer, Failure> {
        Ok(match request {
            GpuRequest::Environment => GpuAnswer::Environment(self.device.environment(self.nvml.as_deref())?),
            GpuRequest::State => GpuAnswer::State(state(self.nvml.as_deref())),
            GpuRequest::ReadCeiling => GpuAnswer::ReadCeiling(self.measurer()?.read_ceiling()?),
            GpuRequest::Transfer { traffic, samples } => {
                GpuAnswer::Transferred(self.measurer()?.transfer(traffic, samples)?)
            }
            GpuRequest::Verify(request) => GpuAnswer::Verified(self.verifier.verify(&request)?),
            GpuRequest::Measure(request) => {
                let nvml = self.nvml.clone();
                GpuAnswer::Measured(self.measurer()?.measure(&request, || state(nvml.as_deref()))?)
            }
        })
    }

    /// The measurer, made at first use.
    fn measurer(&mut self) -> Result<&mut Measurer, Failure> {
        let measurer = match self.measurer.take() {
            Some(measurer) => measurer,
            None => Measurer::new(&self.device)?,
        };
        Ok(self.measurer.insert(measurer))
    }
}

fn state(nvml: Option<&Nvml>) -> GpuState {
    nvml.map(Nvml::state).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::frame;

    #[test]
    fn an_error_that_is_not_a_number_comes_through() {
        let wrong = Outcome::Wrong { error: f64::NAN, detail: "NaN at element 3".into() };
        let bytes = frame::encode(&Reply { answer: GpuAnswer::Failed(wrong), last: false }).unwrap();
        let reply: Reply<GpuAnswer> = frame::decode(&bytes).unwrap();
        let GpuAnswer::Failed(Outcome::Wrong { error, detail }) = reply.answer else { panic!("{reply:?}") };
        assert!(error.is_nan() && detail == "NaN at element 3");
    }
}
