//! What NVML tells about one GPU: limits once, state at any moment.

use super::GpuState;
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;

/// NVML, bound to one GPU by its UUID (its order of devices is not CUDA's).
pub struct Nvml {
    library: nvml_wrapper::Nvml,
    uuid: String,
}

impl Nvml {
    /// Loads NVML for the GPU with this UUID.
    pub fn open(uuid: String) -> Result<Self, NvmlError> {
        let nvml = Self { library: nvml_wrapper::Nvml::init()?, uuid };
        nvml.device()?;
        Ok(nvml)
    }

    fn device(&self) -> Result<Device<'_>, NvmlError> {
        self.library.device_by_uuid(self.uuid.as_str())
    }

    /// Driver version, such as `580.159.04`.
    pub fn driver(&self) -> Option<String> {
        self.library.sys_driver_version().ok()
    }

    /// Highest SM and memory clock, MHz.
    pub fn max_clocks(&self) -> (Option<u32>, Option<u32>) {
        let clock = |clock| self.device().and_then(|d| d.max_clock_info(clock)).ok();
        (clock(Clock::SM), clock(Clock::Memory))
    }

    /// State right now.
    pub fn state(&self) -> GpuState {
        self.device().map(|device| read(&device)).unwrap_or_default()
    }
}

fn read(device: &Device) -> GpuState {
    let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::empty());
    GpuState {
        sm_clock: device.clock_info(Clock::SM).ok(),
        memory_clock: device.clock_info(Clock::Memory).ok(),
        throttle_reasons: reasons.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect(),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        power: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
        ecc: device.is_ecc_enabled().ok().map(|state| state.currently_enabled),
        mig: device.mig_mode().ok().map(|mode| mode.current != 0),
        // One of them is the caller; in a container its process id may be another there.
        other_processes: device.running_compute_processes().ok().map(|all| all.len().saturating_sub(1) as u32),
    }
}
