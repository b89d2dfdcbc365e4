//! PTX text to statements, with no grammar an opcode: guard, opcode, modifiers, operands, scopes. Whether the
//! operands fit the opcode is `decode`'s matter, and whether the PTX is legal is that of `ptxas`.

mod lexer;
mod parser;
mod syntax;

pub(crate) use parser::read;
pub use syntax::SourceLine;
pub(crate) use syntax::{Guard, Instruction, Kernel, Operand, Statement, Syntax, Variable, VariableSpace};
