//! Reads `forms.txt`, whose head says how a form is written.

use super::BLOCK;
use super::product::Product;

/// How far a result may be from the GPU's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Not at all.
    Bits,
    /// Relative to the result.
    Relative(f64),
    /// The same, but absolute where the operand lies in (0.5, 2): around the zero of `lg2`.
    AbsoluteAroundOne(f64),
}

/// What an operand holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    Integer(u32),
    Count,
    F32,
    /// An f32 near the middle between two numbers of a narrower format.
    Halfway(&'static str),
    F64,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    E4m3x2,
    Predicate,
    /// Part of a matrix product: no generator of its own.
    Fragment(u32),
    Immediate(String),
}

/// Type of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    B16,
    B32,
    B64,
    Predicate,
}

/// One kernel of the corpus.
#[derive(Clone, Debug)]
pub struct Form {
    /// The instruction as PTX spells it, then, where it has several kernels, `/` and a word.
    pub name: String,
    pub results: Vec<Kind>,
    pub operands: Vec<Operand>,
    /// PTX.
    pub body: String,
    /// Threads that run it.
    pub threads: usize,
    /// Whether the low bits of the first operand count up.
    pub exhaustive: bool,
    pub tolerance: Tolerance,
    pub(super) product: Option<Product>,
}

impl Kind {
    /// Bytes of a result in a file.
    pub fn bytes(self) -> usize {
        match self {
            Self::Predicate => 1,
            Self::B16 => 2,
            Self::B32 => 4,
            Self::B64 => 8,
        }
    }
}

/// Every form of a table. The table belongs to the tests: a mistake in it is a panic.
pub fn read(text: &str) -> Vec<Form> {
    let mut forms = Vec::new();
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).peekable();
    while let Some(head) = lines.next() {
        let mut body = String::new();
        while let Some(line) = lines.next_if(|line| line.starts_with(' ') || line.ends_with(':')) {
            body += line;
            body += "\n";
        }
        let (name, rest) = head.split_once(" = ").unwrap_or_else(|| panic!("no ` = ` in `{head}`"));
        forms.extend(expand(name).into_iter().map(|name| form(name, rest, &body)));
    }
    forms
}

/// One name for each choice in its braces.
fn expand(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else { return vec![name.to_string()] };
    let (choices, after) = rest.split_once('}').unwrap_or_else(|| panic!("no `}}` in `{name}`"));
    choices.split(',').flat_map(|choice| expand(&format!("{before}{choice}{after}"))).collect()
}

fn form(name: String, rest: &str, body: &str) -> Form {
    let (types, attributes) = rest.split_once(" ; ").unwrap_or((rest, ""));
    let (results, operands) = types.split_once(" < ").unwrap_or(("", types));
    let product = Product::of(&name, operands.trim());
    let (results, operands) = match &product {
        Some(product) => (vec![Kind::B32; product.results()], product.operands()),
        None => (results.split_whitespace().map(kind).collect(), operands.split_whitespace().map(operand).collect()),
    };
    let opcode = name.split('/').next().unwrap_or_default();
    let body = match (&product, body) {
        (Some(product), _) => product.body(opcode),
        (None, "") => plain_body(opcode, &operands),
        (None, body) => body.replace("FORM", opcode),
    };
    let operands: Vec<_> = operands.into_iter().filter(|operand| !matches!(operand, Operand::Immediate(_))).collect();
    let mut form =
        Form { name, results, operands, body, threads: BLOCK, exhaustive: false, tolerance: Tolerance::Bits, product };
    attributes.split_whitespace().for_each(|attribute| form.apply(attribute));
    form
}

/// `opcode d0, a0, …;`
fn plain_body(opcode: &str, operands: &[Operand]) -> String {
    let text = |(i, operand): (usize, &Operand)| match operand {
        Operand::Immediate(text) => format!(", {text}"),
        _ => format!(", a{i}"),
    };
    let operands: String = operands.iter().enumerate().map(text).collect();
    format!("    {opcode} d0{operands};\n")
}

impl Form {
    /// Threads of a block.
    pub fn block(&self) -> u32 {
        self.threads.min(BLOCK) as u32
    }

    /// Blocks.
    pub fn blocks(&self) -> u32 {
        self.threads as u32 / self.block()
    }

    fn apply(&mut self, attribute: &str) {
        let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("`{attribute}` of {}", self.name));
        if attribute == "all" {
            (self.threads, self.exhaustive) = (1 << 16, true);
        } else if let Some(threads) = attribute.strip_prefix('x') {
            self.threads = number(threads) as usize;
            assert_eq!(self.threads % self.block() as usize, 0, "{}: blocks must be full", self.name);
        } else if let Some(bits) = attribute.strip_prefix("rel:") {
            self.tolerance = Tolerance::Relative(0.5f64.powf(number(bits)));
        } else if let Some(bits) = attribute.strip_prefix("abs1:") {
            self.tolerance = Tolerance::AbsoluteAroundOne(0.5f64.powf(number(bits)));
        } else {
            panic!("unknown attribute `{attribute}` of {}", self.name);
        }
    }
}

fn kind(text: &str) -> Kind {
    match text {
        "b16" => Kind::B16,
        "b32" => Kind::B32,
        "b64" => Kind::B64,
        "pred" => Kind::Predicate,
        _ => panic!("unknown result `{text}`"),
    }
}

fn operand(text: &str) -> Operand {
    match text {
        "i16" => Operand::Integer(16),
        "i32" => Operand::Integer(32),
        "i64" => Operand::Integer(64),
        "n32" => Operand::Count,
        "f32" => Operand::F32,
        "f32:f16" => Operand::Halfway("f16"),
        "f32:bf16" => Operand::Halfway("bf16"),
        "f64" => Operand::F64,
        "f32:e4m3" => Operand::Halfway("e4m3"),
        "f32:e5m2" => Operand::Halfway("e5m2"),
        "f32:tf32" => Operand::Halfway("tf32"),
        "f32:int" => Operand::Halfway("int"),
        "f16" => Operand::F16,
        "bf16" => Operand::Bf16,
        "f16x2" => Operand::F16x2,
        "bf16x2" => Operand::Bf16x2,
        "e4m3x2" => Operand::E4m3x2,
        "pred" => Operand::Predicate,
        number if number.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => Operand::Immediate(number.into()),
        _ => panic!("unknown operand `{text}`"),
    }
}
