//! Device memory between two canaries: a write outside it shows.

use super::Failure;
use super::executor::{Executor, Number};
use nvkv_spec::abi::DevicePtr;

const CANARY_BYTE: u8 = 0xa5;
/// What outputs hold before a launch: NaN in every float type.
const POISON: u8 = 0xff;

/// Device memory with a canary at each end.
pub struct Guarded<E: Executor> {
    memory: E::Memory,
    name: &'static str,
    bytes: usize,
}

impl<E: Executor> Guarded<E> {
    /// Memory for an output of `bytes` bytes: poisoned. `name` is for messages.
    pub fn poisoned(on: &mut E, name: &'static str, bytes: usize) -> Result<Self, Failure> {
        let memory = on.alloc(bytes + 2 * E::CANARY)?;
        on.fill(&memory, 0, E::CANARY, CANARY_BYTE)?;
        on.fill(&memory, E::CANARY + bytes, E::CANARY, CANARY_BYTE)?;
        let guarded = Self { memory, name, bytes };
        guarded.poison(on)?;
        Ok(guarded)
    }

    /// Memory that holds `data`.
    pub fn holding<T: Number>(on: &mut E, name: &'static str, data: &[T]) -> Result<Self, Failure> {
        let guarded = Self::poisoned(on, name, size_of_val(data))?;
        guarded.upload(on, data)?;
        Ok(guarded)
    }

    /// Poisons it again.
    pub fn poison(&self, on: &mut E) -> Result<(), Failure> {
        on.fill(&self.memory, E::CANARY, self.bytes, POISON)
    }

    /// Overwrites its start with `data`.
    pub fn upload<T: Number>(&self, on: &mut E, data: &[T]) -> Result<(), Failure> {
        on.upload(&self.memory, E::CANARY, &T::to_bytes(data))
    }

    /// Address of its first byte.
    pub fn address(&self) -> DevicePtr {
        E::address(&self.memory) + E::CANARY as u64
    }

    /// Its content, once the canaries are found whole.
    pub fn read<T: Number>(&self, on: &E) -> Result<Vec<T>, Failure> {
        for (end, offset) in [("before", 0), ("past", E::CANARY + self.bytes)] {
            let canary = on.download(&self.memory, offset, E::CANARY)?;
            if let Some(at) = canary.iter().position(|&b| b != CANARY_BYTE) {
                let detail = format!("wrote {end} {} (byte {at} of the canary)", self.name);
                return Err(Failure::Wrong { error: f64::NAN, detail });
            }
        }
        let bytes = on.download(&self.memory, E::CANARY, self.bytes)?;
        on.read(self.name, &bytes);
        Ok(T::from_bytes(&bytes))
    }
}
