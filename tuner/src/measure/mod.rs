//! Timing on the GPU: graph replays with a cold L2, candidates interleaved, between sentinels, beside a read ceiling.

mod append;
mod bench;
mod decode;
mod fill;
mod probe;
mod sampling;
mod spot;

use crate::gpu::{CudaError, Device, GpuState, Graph, Nvrtc, Timer};
use crate::verify::Failure;
use crate::worker::{MeasureReport, MeasureRequest};
use bench::{Bench, Prepared};
use nvkv_db::median;
use nvkv_spec::{Outcome, Problem, Shape, Stage, Traffic};
use probe::{Probe, ProbeError};
use sampling::{Sampled, Sampling, Sentinel};
use std::rc::Rc;

/// Untimed rounds before the first sample: clocks rise, and code and page tables get warm.
const WARM_UP_ROUNDS: usize = 3;

/// Times kernels on one device; keeps the inputs of the problem and shape at hand.
pub(crate) struct Measurer {
    device: Rc<Device>,
    probe: Probe,
    timer: Timer,
    sentinel: Sentinel,
    bench: Option<(Problem, Shape, Bench)>,
}

impl Measurer {
    /// A measurer whose read ceiling is known. Compiles the probe kernels.
    pub(crate) fn new(device: &Rc<Device>) -> Result<Self, Failure> {
        let nvrtc = Nvrtc::load().map_err(|error| ProbeError::Compile(error.into()))?;
        let mut probe = Probe::new(device, &nvrtc)?;
        probe.ceiling()?;
        Ok(Self {
            device: device.clone(),
            probe,
            timer: Timer::new(device)?,
            sentinel: Sentinel::default(),
            bench: None,
        })
    }

    /// Read bandwidth now, GB/s.
    pub(crate) fn read_ceiling(&mut self) -> Result<f64, Failure> {
        Ok(self.probe.ceiling()?)
    }

    /// Time of a plain kernel that moves so many bytes, µs, under the policy of [`Self::measure`]: the median of
    /// `samples` at the best of several grids; none where no sample was undisturbed.
    pub(crate) fn transfer(&mut self, traffic: Traffic, samples: u32) -> Result<Option<f64>, Failure> {
        self.bench = None; // as much memory may be wanted again
        let transfer = self.probe.transfer(traffic)?;
        let graphs: Vec<&Graph> = transfer.graphs.iter().collect();
        self.warm_up(&graphs)?;
        let sampled = self.sample(&graphs, samples)?;
        Ok(sampled.samples.into_iter().filter_map(|mut grid| median(&mut grid)).min_by(f64::total_cmp))
    }

    /// Times the candidates of `request`; `state` reads what the GPU is doing.
    ///
    /// A candidate whose result is wrong at this shape, or whose launch is refused, has that in the report
    /// and the others go on. An error that destroys the context ends the call.
    pub(crate) fn measure(
        &mut self,
        request: &MeasureRequest,
        state: impl Fn() -> GpuState,
    ) -> Result<MeasureReport, Failure> {
        let MeasureRequest { problem, shape, candidates, samples } = request;
        let kept = self.bench.take().filter(|(p, s, _)| p == problem && s == shape);
        let bench = match kept {
            Some((_, _, bench)) => bench,
            None => Bench::new(&self.device, &self.probe, problem, shape)?,
        };
        let mut prepared = Vec::new();
        for candidate in candidates {
            prepared.push(match bench.prepare(&self.device, problem, shape, candidate) {
                Err(Failure::Cuda(error)) if error.sticky => {
                    return Err(Failure::Cuda(error).at(candidate.id.as_str()));
                }
                other => other.map_err(|failure| failure.outcome(Stage::Measure)),
            });
        }
        let ready: Vec<&Graph> = prepared.iter().flatten().map(|kernel| &kernel.graph).collect();
        self.warm_up(&ready)?;
        let before = state();
        let Sampled { samples, retaken, missing } = self.sample(&ready, *samples)?;
        let after = state();
        let mut sampled = samples.into_iter();
        let mut results = Vec::new();
        for kernel in &prepared {
            results.push(match kernel {
                Ok(kernel) => {
                    let samples = sampled.next().unwrap_or_default();
                    self.still_right(&bench, kernel)?.map(|()| samples)
                }
                Err(outcome) => Err(outcome.clone()),
            });
        }
        drop(prepared);
        self.bench = Some((*problem, *shape, bench));
        Ok(MeasureReport {
            candidates: results,
            read_ceiling_gbps: self.probe.ceiling_again()?,
            before,
            after,
            sentinel_us: self.sentinel.median(),
            retaken: retaken as u32,
            missing: missing as u32,
        })
    }

    /// One more replay must give what the first launch gave: a kernel that does not leave its
    /// workspace as it found it is wrong, however fast.
    fn still_right(&self, bench: &Bench, kernel: &Prepared) -> Result<Result<(), Outcome>, CudaError> {
        match bench.check(|| kernel.graph.replay().and_then(|()| self.device.synchronize())) {
            Err(Failure::Cuda(error)) if error.sticky => Err(error),
            other => Ok(other.map_err(|failure| failure.at("after timing").outcome(Stage::Measure))),
        }
    }

    fn warm_up(&self, graphs: &[&Graph]) -> Result<(), CudaError> {
        for _ in 0..WARM_UP_ROUNDS {
            graphs.iter().try_for_each(|graph| graph.replay())?;
        }
        self.device.synchronize()
    }

    /// `samples` samples of each graph, interleaved, each with a cold L2 and between two sentinels.
    fn sample(&mut self, graphs: &[&Graph], samples: u32) -> Result<Sampled, CudaError> {
        while self.sentinel.is_new() {
            self.watch()?;
        }
        let mut sampling = Sampling::new(graphs.len(), samples as usize);
        while let Some(due) = sampling.next(self.watch()?) {
            sampling.take(self.timer.time(|| graphs[due].replay())?);
        }
        Ok(sampling.end())
    }

    /// Flushes the L2 and times the sentinel, which is the flush's end; whether it is disturbed.
    fn watch(&mut self) -> Result<bool, CudaError> {
        self.probe.flush()?;
        let us = self.timer.time(|| self.probe.sentinel())?;
        Ok(self.sentinel.is_disturbed(us))
    }
}

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Cuda(error) => Self::Cuda(error),
            ProbeError::Compile(error) => {
                Self::Cuda(CudaError { call: "templates/probe.cu", reason: error.to_string(), sticky: false })
            }
        }
    }
}
