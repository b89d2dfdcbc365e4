//! Statements to a program: each instruction becomes an operation on numbered registers, or an error that names it.

mod arithmetic;
mod atomic;
mod barrier;
mod bits;
mod bulk;
mod carry;
mod choose;
mod context;
mod control;
mod convert;
mod descriptor;
mod double;
mod election;
mod exact;
mod float;
mod half;
mod integer;
mod lanewise;
mod matrix;
mod mbarrier;
mod memory;
mod minifloat;
mod movement;
mod names;
mod numeric;
mod round;
mod sharing;
mod target;
mod tensor;
mod wgmma;
mod wmma;

pub(crate) use descriptor::Matrix;
pub(crate) use float::NAN;
pub(crate) use names::{Register, RegisterPlan};
pub(crate) use target::Target;
pub(crate) use wgmma::{fill_rows, multiply_columns, rows_of_registers};

use crate::EmulationError;
use crate::exec::{Class, LOCAL_BASE, Op, Program, Step};
use crate::flow::{Flow, post_dominators};
use crate::memory::SHARED_BASE;
use crate::read::{Guard, Instruction, Kernel, Operand, Statement, Variable, VariableSpace};
use context::{Context, Decoded, Result};
use names::Names;
use sharing::Mentions;
use std::collections::{HashMap, HashSet};

/// Every family, in the order in which they are asked.
const FAMILIES: [fn(&mut Context) -> Decoded; 19] = [
    movement::decode,
    integer::decode,
    float::decode,
    memory::decode,
    convert::decode,
    control::decode,
    tensor::decode,
    wgmma::decode,
    wmma::decode,
    matrix::decode,
    atomic::decode,
    arithmetic::decode,
    half::decode,
    bits::decode,
    carry::decode,
    choose::decode,
    election::decode,
    mbarrier::decode,
    bulk::decode,
];

/// A variable of the module with its address.
pub(crate) struct Placed<'a> {
    pub variable: &'a Variable,
    pub address: u64,
}

/// Decodes a kernel.
pub(crate) fn decode(kernel: &Kernel, target: Target, globals: &[Placed]) -> Result<Program> {
    let mut names = Names::new();
    for Placed { variable, address } in globals {
        names.declare_variable(&variable.name, VariableSpace::Global, *address);
    }
    let param_bytes = place(&mut names, &kernel.params, 0);
    let shared_bytes = place_shared(&mut names, kernel, globals);
    let local_bytes = place_local(&mut names, kernel);
    let labels = labels(kernel)?;
    // Where registers are read and written says where they may lie: a first decoding is for that alone.
    let draft = Builder::run(kernel, target, &labels, names.clone())?;
    let flow = flow(&draft.steps);
    names.place(draft.names.placement(&flow, &draft.mentions));
    let Builder { mut steps, names, .. } = Builder::run(kernel, target, &labels, names)?;
    set_meeting_points(&mut steps, &flow);
    keep_accumulators(&mut steps);
    let registers = names.plan();
    Ok(Program { name: kernel.name.clone(), steps, registers, param_bytes, shared_bytes, local_bytes })
}

/// Places variables one after another from `base`; returns where they end.
fn place<'a>(names: &mut Names, variables: impl IntoIterator<Item = &'a Variable>, base: u32) -> u32 {
    variables.into_iter().fold(base, |end, variable| {
        let at = end.checked_next_multiple_of(variable.align.max(1)).unwrap_or(u32::MAX);
        names.declare_variable(&variable.name, variable.space, u64::from(at));
        at.saturating_add(variable.bytes)
    })
}

/// Local variables; returns their bytes.
fn place_local(names: &mut Names, kernel: &Kernel) -> u32 {
    let locals = kernel.body.iter().filter_map(|statement| match statement {
        Statement::Variable(variable) if variable.space == VariableSpace::Local => Some(variable),
        _ => None,
    });
    place(names, locals, LOCAL_BASE) - LOCAL_BASE
}

/// Static shared variables, the module's and the kernel's own; then those without a size, which all begin where
/// dynamic shared memory does. Returns the bytes of the static ones.
fn place_shared(names: &mut Names, kernel: &Kernel, globals: &[Placed]) -> u32 {
    let of_kernel = kernel.body.iter().filter_map(|statement| match statement {
        Statement::Variable(variable) => Some(variable),
        _ => None,
    });
    let all = globals.iter().map(|placed| placed.variable).chain(of_kernel);
    let (sized, dynamic): (Vec<_>, Vec<_>) =
        all.filter(|v| v.space == VariableSpace::Shared).partition(|v| v.bytes > 0);
    let align = dynamic.iter().map(|v| v.align).max().unwrap_or(16).max(16);
    let end = place(names, sized, SHARED_BASE).checked_next_multiple_of(align).unwrap_or(u32::MAX);
    place(names, dynamic, end) - SHARED_BASE
}

/// Labels by scope, with the instruction that follows. Scopes are numbered in the order in which they open.
fn labels(kernel: &Kernel) -> Result<HashMap<(usize, String), usize>> {
    let mut labels = HashMap::new();
    let (mut scopes, mut opened, mut at) = (vec![0], 0, 0);
    for statement in &kernel.body {
        match statement {
            Statement::Open => {
                opened += 1;
                scopes.push(opened);
            }
            Statement::Close => drop(scopes.pop()),
            Statement::Label { line, name } => {
                if labels.insert((scopes.last().copied().unwrap_or(0), name.clone()), at).is_some() {
                    let (opcode, problem) = (format!("{name}:"), "the label is declared twice".to_string());
                    return Err(EmulationError::Operand { line: *line, opcode, problem });
                }
            }
            Statement::Instruction(_) => at += 1,
            Statement::Registers { .. } | Statement::Variable(_) => {}
        }
    }
    Ok(labels)
}

/// Leaves of the registers that each step names those that a `wgmma` writes.
fn keep_accumulators(steps: &mut [Step]) {
    let accumulators = |step: &Step| match &step.op {
        Op::Wgmma(wgmma) => wgmma.d.clone(),
        _ => Vec::new(),
    };
    let all: HashSet<Register> = steps.iter().flat_map(accumulators).collect();
    steps.iter_mut().for_each(|step| step.registers.retain(|register| all.contains(register)));
}

struct Builder<'a> {
    names: Names,
    target: Target,
    labels: &'a HashMap<(usize, String), usize>,
    scopes: Vec<usize>,
    opened: usize,
    steps: Vec<Step>,
    /// Of each step, the registers before they are placed.
    mentions: Vec<Mentions>,
}

impl<'a> Builder<'a> {
    fn run(kernel: &Kernel, target: Target, labels: &'a HashMap<(usize, String), usize>, names: Names) -> Result<Self> {
        let (steps, mentions) = (Vec::new(), Vec::new());
        let mut builder = Self { names, target, labels, scopes: vec![0], opened: 0, steps, mentions };
        for statement in &kernel.body {
            builder.statement(statement)?;
        }
        Ok(builder)
    }

    fn statement(&mut self, statement: &Statement) -> Result<()> {
        match statement {
            Statement::Open => {
                self.opened += 1;
                self.scopes.push(self.opened);
                self.names.open();
            }
            Statement::Close => {
                self.scopes.pop();
                self.names.close();
            }
            Statement::Registers { line, class, names } => {
                for (name, count) in names {
                    let wrong = |problem| EmulationError::Operand { line: *line, opcode: ".reg".to_string(), problem };
                    self.names.declare(class, name, *count).map_err(wrong)?;
                }
            }
            Statement::Instruction(instruction) => {
                let step = self.instruction(instruction)?;
                self.steps.push(step);
            }
            Statement::Variable(_) | Statement::Label { .. } => {}
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &Instruction) -> Result<Step> {
        let form: Vec<&str> = instruction.opcode.split('.').collect();
        let mut context = Context {
            instruction,
            form: &form,
            target: self.target,
            names: &mut self.names,
            labels: self.labels,
            scopes: &self.scopes,
            used: Vec::new(),
            mentions: Mentions::default(),
        };
        let guard = match &instruction.guard {
            None => None,
            Some(Guard { register, negated }) => {
                Some((context.value(&Operand::Name(register.clone()), Class::Predicate)?, *negated))
            }
        };
        for family in FAMILIES {
            if let Some(op) = family(&mut context)? {
                let Context { used, mut mentions, .. } = context;
                if guard.is_some() {
                    // Lanes without it keep what they have.
                    let writes = std::mem::take(&mut mentions.writes);
                    mentions.reads.extend(writes);
                }
                mentions.keeps = matches!(op, Op::Wgmma(_));
                self.mentions.push(mentions);
                return Ok(Step {
                    op,
                    guard,
                    registers: used,
                    line: instruction.line,
                    opcode: instruction.opcode.clone(),
                    source_line: instruction.source_line.clone(),
                });
            }
        }
        Err(EmulationError::UnknownInstruction { line: instruction.line, opcode: instruction.opcode.clone() })
    }
}

/// Where each step goes.
fn flow(steps: &[Step]) -> Vec<Flow> {
    steps
        .iter()
        .map(|step| match (&step.op, step.guard.is_some()) {
            (Op::Branch { target, .. }, false) => Flow::Jump(*target),
            (Op::Branch { target, .. }, true) => Flow::Fork(*target),
            (Op::Exit, false) => Flow::End,
            (Op::Exit, true) => Flow::MayEnd,
            _ => Flow::Next,
        })
        .collect()
}

/// Fills in where the lanes of each branch meet again.
fn set_meeting_points(steps: &mut [Step], flow: &[Flow]) {
    for (step, meeting) in steps.iter_mut().zip(post_dominators(flow)) {
        if let Op::Branch { reconverge, .. } = &mut step.op {
            *reconverge = meeting;
        }
    }
}
