//! Which target a run is for, and whether a GPU of it is here.

use crate::worker::probe_device;
use nvkv_db::EnvironmentKey;
use nvkv_spec::{GpuEnvironment, Target};
use std::str::FromStr;

/// The CUDA device that is used; `CUDA_VISIBLE_DEVICES` chooses which one that is.
pub const DEVICE: u32 = 0;

/// The value of `--devices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Every one that the driver lists.
    All,
    /// These CUDA devices, at least one.
    These(Vec<u32>),
}

impl Default for Devices {
    fn default() -> Self {
        Self::These(vec![DEVICE])
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "all" {
            return Ok(Self::All);
        }
        let mut list = text.split(',').map(|n| n.trim().parse()).collect::<Result<Vec<u32>, _>>().unwrap_or_default();
        list.sort();
        list.dedup();
        if list.is_empty() {
            Err("must be a list of CUDA devices such as 0,1, or all".into())
        } else {
            Ok(Self::These(list))
        }
    }
}

/// A GPU of this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Board {
    /// Its CUDA device.
    pub device: u32,
    /// What it is.
    pub environment: GpuEnvironment,
}

/// A target, and the GPU that can time its kernels or the reason why none can.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// What kernels are compiled for.
    pub target: Target,
    /// The GPU of that target that is here, or why kernels can only be compiled.
    pub gpu: Result<GpuEnvironment, String>,
    /// The CUDA device of that GPU.
    pub device: u32,
    /// Further GPUs of its model and driver, which share its work.
    pub beside: Vec<Board>,
}

/// GPUs that cannot share one run.
#[derive(Debug, thiserror::Error)]
pub enum BadDevices {
    /// One is missing.
    #[error("--devices lists {device}, and {why}; `nvidia-smi -L` lists what is there")]
    Missing {
        /// Its number.
        device: u32,
        /// Why it cannot be used.
        why: String,
    },
    /// They are of two models or drivers, and a winner of one is not one of the other.
    #[error(
        "devices {one} ({}) and {other} ({}) are not of one model and driver: each model's kernels are chosen by its own \
         times. Tune them one after the other, with --devices {one} and with --devices {other}", .0.environment.name,
        .1.environment.name, one = .0.device, other = .1.device
    )]
    Unlike(Box<Board>, Box<Board>),
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

    /// The same with several GPUs: the first says the target, and the others must be like it.
    pub fn with_devices(named: Option<Target>, devices: &Devices) -> anyhow::Result<Self> {
        Self::with(named, devices, |device| probe_device(device).map_err(|error| error.to_string()))
    }

    fn with(
        named: Option<Target>,
        devices: &Devices,
        mut probe: impl FnMut(u32) -> Result<GpuEnvironment, String>,
    ) -> anyhow::Result<Self> {
        let listed = match devices {
            Devices::All => vec![DEVICE],
            Devices::These(list) => list.clone(),
        };
        let first = listed.first().copied().unwrap_or(DEVICE);
        let mut machine = Self { device: first, ..Self::of(named, probe(first))? };
        let Ok(gpu) = machine.gpu.clone() else { return Ok(machine) };
        let first = Board { device: first, environment: gpu };
        let mut join = |device, probed: Result<GpuEnvironment, String>| {
            let environment = probed.map_err(|why| BadDevices::Missing { device, why })?;
            let board = Board { device, environment };
            if EnvironmentKey::from(&board.environment) != EnvironmentKey::from(&first.environment) {
                return Err(BadDevices::Unlike(Box::new(first.clone()), Box::new(board)));
            }
            machine.beside.push(board);
            Ok(())
        };
        match devices {
            Devices::These(list) => list.iter().skip(1).try_for_each(|&device| join(device, probe(device)))?,
            Devices::All => {
                for device in first.device + 1.. {
                    let Ok(environment) = probe(device) else { break };
                    join(device, Ok(environment))?;
                }
            }
        }
        Ok(machine)
    }

    /// Every GPU that measures; none without one of the target.
    pub fn boards(&self) -> Vec<Board> {
        let first = self.gpu.iter().map(|gpu| Board { device: self.device, environment: gpu.clone() });
        first.chain(self.beside.iter().cloned()).collect()
    }

    fn of(named: Option<Target>, gpu: Result<GpuEnvironment, String>) -> Result<Self, NoNativeTarget> {
        let Some(target) = named else {
            let gpu = gpu.map_err(NoNativeTarget)?;
            let (major, minor) = gpu.capability;
            let target = Target::of_capability(major, minor)
                .ok_or_else(|| NoNativeTarget(format!("{} (capability {major}.{minor}) is not a target", gpu.name)))?;
            return Ok(Self { target, gpu: Ok(gpu), device: DEVICE, beside: Vec::new() });
        };
        let gpu = gpu.and_then(|gpu| {
            if gpu.capability == target.facts().capability {
                return Ok(gpu);
            }
            Err(format!("the GPU here is {} (capability {}.{})", gpu.name, gpu.capability.0, gpu.capability.1))
        });
        Ok(Self { target, gpu, device: DEVICE, beside: Vec::new() })
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
    fn devices_are_boards_of_one_model() {
        let host = |device: u32| match device {
            0 | 1 => Ok(GpuEnvironment { uuid: format!("GPU-{device}"), ..h200() }),
            2 => Ok(GpuEnvironment { name: "H100".into(), ..h200() }),
            _ => Err("there are 3 CUDA devices".to_string()),
        };
        let with = |devices: &str| Machine::with(None, &devices.parse().unwrap(), host);
        let devices = |machine: Machine| machine.boards().iter().map(|board| board.device).collect::<Vec<_>>();
        assert_eq!(devices(with("1,0,1").unwrap()), [0, 1]);
        assert_eq!(devices(with("2").unwrap()), [2]);
        let unlike = with("all").unwrap_err().to_string();
        assert!(unlike.contains("0 (H200)") && unlike.contains("--devices 2"), "{unlike}");
        let missing = with("0,7").unwrap_err().to_string();
        assert!(missing.contains("lists 7") && missing.contains("3 CUDA devices"), "{missing}");
        let twins = |device| if device < 2 { host(device) } else { Err("no".into()) };
        assert_eq!(devices(Machine::with(Some(Target::Sm90a), &Devices::All, twins).unwrap()), [0, 1]);
        let none = Machine::with(Some(Target::Sm90a), &Devices::All, |_| Err("no driver".into())).unwrap();
        assert_eq!(none.boards(), []);
        assert!("0,x".parse::<Devices>().is_err() && "".parse::<Devices>().is_err());
    }

    #[test]
    fn a_gpu_of_another_target_times_nothing() {
        assert_eq!(Machine::of(Some(Target::Sm90a), Ok(h200())).unwrap().gpu, Ok(h200()));
        let machine = Machine::of(Some(Target::Sm100a), Ok(h200())).unwrap();
        assert!(machine.gpu.unwrap_err().contains("H200"));
    }
}
