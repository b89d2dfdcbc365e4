//! A form in the emulator.

use super::table::Form;
use super::{SLOT, TARGET};
use nvkv_emulator::{EmulationError, Memory, Module, launch};

impl Form {
    /// Results of every thread, as a file has them.
    pub fn emulate(&self) -> Result<Vec<u8>, EmulationError> {
        let mut memory = Memory::new();
        let input = memory.alloc_with(&self.input());
        let output_bytes = self.threads * self.results.len() * SLOT;
        let output = memory.alloc(output_bytes);
        let params: Vec<u8> = Self::params(input, output).iter().flat_map(|word| word.to_le_bytes()).collect();
        let module = Module::parse(&self.ptx())?;
        let (grid, block) = ([self.blocks(), 1, 1], [self.block(), 1, 1]);
        launch(&module, "k", grid, block, 0, &params, &mut memory, TARGET)?;
        Ok(self.packed(&memory.read(output, output_bytes)?))
    }
}
