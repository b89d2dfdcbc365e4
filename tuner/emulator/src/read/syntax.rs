//! What a PTX file says, before anything is resolved.

use std::fmt;

/// A PTX file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Syntax {
    /// `.target`, such as `sm_90a`.
    pub target: String,
    /// Variables outside kernels.
    pub variables: Vec<Variable>,
    /// `.entry` functions.
    pub kernels: Vec<Kernel>,
}

/// An `.entry`.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub name: String,
    pub params: Vec<Variable>,
    pub body: Vec<Statement>,
}

/// The spaces that variables may be declared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VariableSpace {
    Global,
    Shared,
    Local,
    Param,
}

/// A declared variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub space: VariableSpace,
    pub name: String,
    pub align: u32,
    /// Bytes of one element.
    pub element: u32,
    /// Bytes in all; 0 for an array without a size (dynamic shared memory).
    pub bytes: u32,
    /// Initial values of the first elements, as bits; the rest is zero.
    pub initial: Vec<u64>,
}

impl Variable {
    /// The bytes that it holds at first.
    pub fn initial_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            self.initial.iter().flat_map(|value| value.to_le_bytes()[..self.element as usize].to_vec()).collect();
        bytes.resize(self.bytes as usize, 0);
        bytes
    }
}

/// A statement of a kernel, in order; scopes are marked by where they open and close.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    /// `.reg .b32 %r<8>;` declares `%r0` to `%r7`; without a count, the name itself.
    Registers {
        line: u32,
        class: String,
        names: Vec<(String, Option<u32>)>,
    },
    Variable(Variable),
    Label {
        line: u32,
        name: String,
    },
    Open,
    Close,
    Instruction(Instruction),
}

/// `@p` or `@!p`.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub register: String,
    pub negated: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub line: u32,
    pub source_line: Option<SourceLine>,
    pub guard: Option<Guard>,
    /// With all modifiers: `cvt.rn.f16x2.e4m3x2`.
    pub opcode: String,
    pub operands: Vec<Operand>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// A register, a variable, a label, a special register, or `_`.
    Name(String),
    /// An integer immediate, as two's complement.
    Integer(i64),
    /// `0f…`: bits of an f32.
    Float32(u32),
    /// `0d…`: bits of an f64.
    Float64(u64),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `[base + offset]`, or `base + offset` where an address itself is meant.
    Address { base: Box<Operand>, offset: i64 },
    /// `d|p`.
    Pair(Box<Operand>, Box<Operand>),
    /// `!p`.
    Not(Box<Operand>),
}

/// A line of CUDA source, from `.loc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// File as `.file` names it, or its number.
    pub file: std::sync::Arc<str>,
    /// Line, from 1.
    pub line: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}
