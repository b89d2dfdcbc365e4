//! What the names in a kernel stand for: registers in their scopes, variables, special registers, immediates.

use super::sharing::{Mentions, Placement};
use crate::exec::{Class, Slot, Special};
use crate::flow::Flow;
use crate::read::VariableSpace;
use std::collections::HashMap;

/// A register, and the file in which it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Register {
    pub class: Class,
    pub slot: Slot,
}

/// Registers declared between two braces.
#[derive(Clone, Default)]
struct Scope {
    single: HashMap<String, Register>,
    /// Prefix to class, first slot and count.
    ranges: HashMap<String, (Class, u32, u32)>,
}

impl Scope {
    /// The register of that name in a range: the prefix and a number.
    fn numbered(&self, name: &str) -> Option<Register> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let index = name[prefix.len()..].parse::<u32>().ok()?;
        let &(class, first, count) = self.ranges.get(prefix)?;
        (index < count).then_some(Register { class, slot: Slot(first + index) })
    }
}

/// Names of one kernel. Registers are numbered as they come; [`Names::placed`] says where they lie.
#[derive(Clone)]
pub(crate) struct Names {
    scopes: Vec<Scope>,
    sizes: HashMap<Class, u32>,
    constants: HashMap<(Class, u64), Slot>,
    specials: HashMap<Special, Slot>,
    variables: HashMap<String, (VariableSpace, u64)>,
    flag: Option<Slot>,
    /// Registers of no declaration, which keep their rows from the first instruction to the last.
    lasting: Vec<Register>,
    placement: Option<Placement>,
}

/// How large a register file must be, and what lies in it at the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegisterPlan {
    pub words: usize,
    pub doubles: usize,
    pub predicates: usize,
    pub constants: Vec<(Register, u64)>,
    pub specials: Vec<(Special, Slot)>,
}

impl Names {
    pub fn new() -> Self {
        Self {
            scopes: vec![Scope::default()],
            sizes: HashMap::new(),
            constants: HashMap::new(),
            specials: HashMap::new(),
            variables: HashMap::new(),
            flag: None,
            lasting: Vec::new(),
            placement: None,
        }
    }

    pub fn open(&mut self) {
        self.scopes.push(Scope::default());
    }

    pub fn close(&mut self) {
        self.scopes.pop();
    }

    /// `count` new registers in a row; the first of them.
    fn fresh(&mut self, class: Class, count: u32) -> Slot {
        let size = self.sizes.entry(class).or_default();
        let first = *size;
        *size += count;
        Slot(first)
    }

    /// A new register that no declaration names.
    fn lasting(&mut self, class: Class) -> Slot {
        let slot = self.fresh(class, 1);
        self.lasting.push(Register { class, slot });
        slot
    }

    /// Declares `name`, or `name0` and so on where there is a count, in the innermost scope.
    ///
    /// # Errors
    /// Where the type is unknown, or the scope has that name.
    pub fn declare(&mut self, kind: &str, name: &str, count: Option<u32>) -> Result<(), String> {
        let class = class(kind).ok_or_else(|| format!("unknown type `{kind}`"))?;
        let slot = self.fresh(class, count.unwrap_or(1));
        let Some(scope) = self.scopes.last_mut() else { return Ok(()) };
        let twice = match count {
            Some(count) => scope.ranges.insert(name.to_string(), (class, slot.0, count)).is_some(),
            None => {
                let of_range = scope.numbered(name).is_some();
                scope.single.insert(name.to_string(), Register { class, slot }).is_some() || of_range
            }
        };
        if twice { Err(format!("`{name}` is declared twice")) } else { Ok(()) }
    }

    pub fn declare_variable(&mut self, name: &str, space: VariableSpace, address: u64) {
        self.variables.insert(name.to_string(), (space, address));
    }

    pub fn variable(&self, name: &str) -> Option<(VariableSpace, u64)> {
        self.variables.get(name).copied()
    }

    /// The register that `name` stands for here, special registers included.
    pub fn register(&mut self, name: &str) -> Option<Register> {
        let declared = |scope: &Scope| scope.single.get(name).copied().or_else(|| scope.numbered(name));
        if let Some(register) = self.scopes.iter().rev().find_map(declared) {
            return Some(register);
        }
        let special = Special::named(name)?;
        let slot = match self.specials.get(&special) {
            Some(&slot) => slot,
            None => self.lasting(Class::Word),
        };
        self.specials.insert(special, slot);
        Some(Register { class: Class::Word, slot })
    }

    /// Where the registers numbered so far lie, that `mentions` says how `code` uses.
    pub fn placement(&self, code: &[Flow], mentions: &[Mentions]) -> Placement {
        Placement::new(code, mentions, &self.sizes, &self.lasting)
    }

    /// Places the registers that will be numbered.
    pub fn place(&mut self, placement: Placement) {
        self.placement = Some(placement);
    }

    /// Where a register lies; where nothing is placed yet, at its number.
    pub fn placed(&self, register: Register) -> Register {
        self.placement.as_ref().map_or(register, |placement| placement.of(register))
    }

    /// A register that holds `bits` and is never written.
    pub fn constant(&mut self, class: Class, bits: u64) -> Register {
        let slot = match self.constants.get(&(class, bits)) {
            Some(&slot) => slot,
            None => self.lasting(class),
        };
        self.constants.insert((class, bits), slot);
        self.placed(Register { class, slot })
    }

    /// The carry flag.
    pub fn flag(&mut self) -> Register {
        let slot = match self.flag {
            Some(slot) => slot,
            None => self.lasting(Class::Predicate),
        };
        self.flag = Some(slot);
        self.placed(Register { class: Class::Predicate, slot })
    }

    /// A register that nobody reads, for `_`.
    pub fn sink(&mut self, class: Class) -> Register {
        let slot = self.lasting(class);
        self.placed(Register { class, slot })
    }

    pub fn plan(&self) -> RegisterPlan {
        let sizes = self.placement.as_ref().map_or(&self.sizes, |placement| &placement.sizes);
        let size = |class| sizes.get(&class).map_or(0, |&n| n as usize);
        let constant = |(&(class, bits), &slot): (&(Class, u64), &Slot)| (self.placed(Register { class, slot }), bits);
        let special =
            |(&special, &slot): (&Special, &Slot)| (special, self.placed(Register { class: Class::Word, slot }).slot);
        RegisterPlan {
            words: size(Class::Word),
            doubles: size(Class::Double),
            predicates: size(Class::Predicate),
            constants: self.constants.iter().map(constant).collect(),
            specials: self.specials.iter().map(special).collect(),
        }
    }
}

/// The class of a register type such as `.b32`.
fn class(kind: &str) -> Option<Class> {
    if kind == ".pred" {
        return Some(Class::Predicate);
    }
    match kind.trim_start_matches(|c: char| !c.is_ascii_digit()) {
        "8" | "16" | "32" | "16x2" => Some(Class::Word),
        "64" => Some(Class::Double),
        _ => None,
    }
}
