//! Which target a run is for, and whether a GPU of it is here.

use crate::worker::probe_device;
use nvkv_spec::{GpuEnvironment, Target};

/// The CUDA device that is used; `CUDA_VISIBLE_DEVICES` chooses which one that is.
pub const DEVICE: u32 = 0;

/// A target, and the GPU that can time its kernels or the reason why none can.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// What kernels are compiled for.
    pub target: Target,
    /// The GPU of that target that is here, or why kernels can only be compiled.
    pub gpu: Result<GpuEnvironment, String>,
}

/// `--arch native` where no supported GPU is.
#[derive(Debug, thiserror::Error)]
#[error(
    "--arch native needs a GPU, and {0}; name the target instead, such as --arch sm_100: \
     kernels are then compiled and their order predicted, nothing is timed"
)]
pub struct NoNativeTarget(String);

impl Machine {
    /// The machine for `named`, or for the GPU that is here where none is named.
    pub fn find(named: Option<Target>) -> Result<Self, NoNativeTarget> {
        Self::of(named, probe_device(DEVICE).map_err(|error| error.to_string()))
    }

    fn of(named: Option<Target>, gpu: Result<GpuEnvironment, String>) -> Result<Self, NoNativeTarget> {
        let Some(target) = named else {
            let gpu = gpu.map_err(NoNativeTarget)?;
            let (major, minor) = gpu.capability;
            let target = Target::of_capability(major, minor)
                .ok_or_else(|| NoNativeTarget(format!("{} (capability {major}.{minor}) is not a target", gpu.name)))?;
            return Ok(Self { target, gpu: Ok(gpu) });
        };
        let gpu = gpu.and_then(|gpu| {
            if gpu.capability == target.facts().capability {
                return Ok(gpu);
            }
            Err(format!("the GPU here is {} (capability {}.{})", gpu.name, gpu.capability.0, gpu.capability.1))
        });
        Ok(Self { target, gpu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> GpuEnvironment {
        GpuEnvironment { name: "H200".into(), capability: (9, 0), ..Default::default() }
    }

    #[test]
    fn native_is_the_gpu_that_is_here() {
        let machine = Machine::of(None, Ok(h200())).unwrap();
        assert_eq!((machine.target, machine.gpu), (Target::Sm90a, Ok(h200())));
        let error = Machine::of(None, Err("no driver".into())).unwrap_err().to_string();
        assert!(error.contains("no driver") && error.contains("--arch sm_100"), "{error}");
        let old = GpuEnvironment { capability: (7, 5), ..h200() };
        assert!(Machine::of(None, Ok(old)).unwrap_err().to_string().contains("7.5"));
    }

    #[test]
    fn a_gpu_of_another_target_times_nothing() {
        assert_eq!(Machine::of(Some(Target::Sm90a), Ok(h200())).unwrap().gpu, Ok(h200()));
        let machine = Machine::of(Some(Target::Sm100a), Ok(h200())).unwrap();
        assert!(machine.gpu.unwrap_err().contains("H200"));
    }
}
