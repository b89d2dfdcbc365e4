//! Time between two points of the stream, by device events.
#![allow(unsafe_code)] // driver calls on events that `Timer` owns

use super::{CudaError, Device};
use cudarc::driver::sys;
use nvkv_runtime::cu;
use std::rc::Rc;

/// A pair of events.
pub struct Timer {
    device: Rc<Device>,
    start: sys::CUevent,
    end: sys::CUevent,
}

impl Timer {
    /// A timer on the device's stream.
    pub fn new(device: &Rc<Device>) -> Result<Self, CudaError> {
        let mut timer = Self { device: device.clone(), start: std::ptr::null_mut(), end: std::ptr::null_mut() };
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as u32;
        cu!(cuEventCreate(&mut timer.start, flags))?;
        cu!(cuEventCreate(&mut timer.end, flags))?;
        Ok(timer)
    }

    /// Time of what `work` puts into the stream, µs; waits for it.
    pub fn time<E: From<CudaError>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
        let mut milliseconds = 0.0;
        // Events and stream live as long as `self`.
        cu!(cuEventRecord(self.start, self.device.stream))?;
        work()?;
        cu!(cuEventRecord(self.end, self.device.stream))?;
        cu!(cuEventSynchronize(self.end))?;
        cu!(cuEventElapsedTime_v2(&mut milliseconds, self.start, self.end))?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        for event in [self.start, self.end] {
            if !event.is_null() {
                // An error here follows one that was already reported.
                let _ = cu!(cuEventDestroy_v2(event));
            }
        }
    }
}
