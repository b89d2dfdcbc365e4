//! One instruction while it is decoded: its operands by position, with errors that name it.

use super::names::{Names, Register};
use super::sharing::Mentions;
use super::target::Target;
use crate::EmulationError;
use crate::exec::{Address, Class, Lane, Op, WARP};
use crate::read::{Instruction, Operand};
use std::collections::HashMap;

pub(super) type Result<T> = std::result::Result<T, EmulationError>;

/// What a family of instructions answers: an operation, or nothing where the instruction is not of the family.
pub(super) type Decoded = Result<Option<Op>>;

pub(super) struct Context<'a> {
    pub instruction: &'a Instruction,
    /// The opcode at its dots.
    pub form: &'a [&'a str],
    pub target: Target,
    pub names: &'a mut Names,
    pub labels: &'a HashMap<(usize, String), usize>,
    /// Scopes around the instruction, the innermost last.
    pub scopes: &'a [usize],
    /// Every register that was asked for.
    pub used: Vec<Register>,
    /// The same before they are placed, by what becomes of them.
    pub mentions: Mentions,
}

impl<'a> Context<'a> {
    pub fn error<T>(&self, problem: impl Into<String>) -> Result<T> {
        let Instruction { line, opcode, .. } = self.instruction;
        Err(EmulationError::Operand { line: *line, opcode: opcode.clone(), problem: problem.into() })
    }

    /// Checks the number of operands.
    pub fn expect(&self, count: usize) -> Result<()> {
        match self.instruction.operands.len() {
            found if found == count => Ok(()),
            found => self.error(format!("{found} operands, not {count}")),
        }
    }

    pub fn operand(&self, index: usize) -> Result<&'a Operand> {
        let missing = || self.error(format!("operand {} is missing", index + 1));
        self.instruction.operands.get(index).map_or_else(missing, Ok)
    }

    fn note(&mut self, register: Register) -> Register {
        self.mentions.reads.push(register);
        let placed = self.names.placed(register);
        self.used.push(placed);
        placed
    }

    /// Notes the registers that `ask` asks for as written in every active lane, and not read.
    pub fn overwritten<T>(&mut self, ask: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.mentions.reads.len();
        let asked = ask(self)?;
        let writes = self.mentions.reads.split_off(before);
        self.mentions.writes.extend(writes);
        Ok(asked)
    }

    /// Operand `index`, read as `T`.
    pub fn source<T: Lane>(&mut self, index: usize) -> Result<Register> {
        let operand = self.operand(index)?;
        self.value(operand, T::CLASS)
    }

    /// A register, an immediate or the address of a variable, in a register of `class`.
    pub fn value(&mut self, operand: &Operand, class: Class) -> Result<Register> {
        let bits = match operand {
            Operand::Name(name) => match self.names.register(name) {
                Some(register) if register.class == class => return Ok(self.note(register)),
                Some(register) => {
                    return self.error(format!("`{name}` is a {:?} register, not a {class:?}", register.class));
                }
                None => self.variable(name)?,
            },
            Operand::Address { base, offset } => match base.as_ref() {
                Operand::Name(name) => self.variable(name)?.wrapping_add_signed(*offset),
                _ => return self.error("an address is no value"),
            },
            &Operand::Integer(value) => value as u64,
            &Operand::Float32(bits) => u64::from(bits),
            &Operand::Float64(bits) => bits,
            other => return self.error(format!("{other:?} is no value")),
        };
        let bits = match class {
            Class::Word => bits & u64::from(u32::MAX),
            Class::Double => bits,
            Class::Predicate => u64::from(bits != 0),
        };
        Ok(self.names.constant(class, bits))
    }

    /// Whether operand `index` is a 64-bit register.
    pub fn is_double(&mut self, index: usize) -> Result<bool> {
        let Operand::Name(name) = self.operand(index)? else { return Ok(false) };
        Ok(self.names.register(name).is_some_and(|register| register.class == Class::Double))
    }

    fn variable(&self, name: &str) -> Result<u64> {
        if name == "WARP_SZ" {
            return Ok(WARP as u64);
        }
        let unknown = || self.error(format!("`{name}` is not declared"));
        self.names.variable(name).map_or_else(unknown, |(_, address)| Ok(address))
    }

    /// Operand `index`, written as `T`.
    pub fn destination<T: Lane>(&mut self, index: usize) -> Result<Register> {
        let operand = self.operand(index)?;
        self.target_of(operand, T::CLASS)
    }

    /// A register of `class` to write to; `_` is one that nobody reads.
    pub fn target_of(&mut self, operand: &Operand, class: Class) -> Result<Register> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(self.names.sink(class)),
            Operand::Name(_) => self.overwritten(|context| context.value(operand, class)),
            other => self.error(format!("{other:?} is no destination")),
        }
    }

    /// A register of any class.
    pub fn any(&mut self, operand: &Operand, immediate: Class) -> Result<Register> {
        if let Operand::Name(name) = operand
            && let Some(register) = self.names.register(name)
        {
            return Ok(self.note(register));
        }
        self.value(operand, immediate)
    }

    /// The parts of a vector, or the one operand itself.
    pub fn parts(&self, index: usize) -> Result<&'a [Operand]> {
        Ok(match self.operand(index)? {
            Operand::Vector(parts) => parts,
            single => std::slice::from_ref(single),
        })
    }

    /// A vector of `count` words.
    pub fn words(&mut self, index: usize, count: usize) -> Result<Vec<Register>> {
        let parts = self.parts(index)?;
        if parts.len() != count {
            return self.error(format!("operand {} has {} parts, not {count}", index + 1, parts.len()));
        }
        parts.iter().map(|part| self.value(part, Class::Word)).collect()
    }

    /// `[base + offset]`
    pub fn address(&mut self, index: usize) -> Result<Address> {
        let Operand::Address { base, offset } = self.operand(index)? else {
            return self.error(format!("operand {} is no address", index + 1));
        };
        let base = self.any(base, Class::Double)?;
        Ok(Address { base, offset: *offset })
    }

    /// An integer that is written in the instruction.
    pub fn immediate(&self, index: usize) -> Result<u32> {
        match self.operand(index)? {
            &Operand::Integer(value) if u32::try_from(value).is_ok() => Ok(value as u32),
            other => self.error(format!("operand {} must be a small integer, not {other:?}", index + 1)),
        }
    }

    /// The instruction that a label stands before.
    pub fn label(&self, index: usize) -> Result<usize> {
        let Operand::Name(name) = self.operand(index)? else { return self.error("no label") };
        let place = self.scopes.iter().rev().find_map(|&scope| self.labels.get(&(scope, name.clone())));
        place.map_or_else(|| self.error(format!("label `{name}` is not declared")), |&at| Ok(at))
    }
}
