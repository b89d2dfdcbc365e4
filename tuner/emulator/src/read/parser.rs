//! Tokens to statements.

use super::lexer::{Token, excerpt, tokens};
use super::syntax::{Guard, Instruction, Kernel, Operand, SourceLine, Statement, Syntax, Variable, VariableSpace};
use crate::EmulationError;
use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

type Result<T> = std::result::Result<T, EmulationError>;

/// Registers of one declaration: NVRTC declares some thousands.
const MOST_REGISTERS: u32 = 1 << 20;
/// Operands within an operand; PTX has a vector in an address.
const MOST_NESTED: u32 = 8;

/// Reads a PTX file.
pub(crate) fn read(text: &str) -> Result<Syntax> {
    let tokens = tokens(text)?;
    let files = files(&tokens);
    let mut parser = Parser { text, tokens, at: 0, files, source_line: None, nested: 0 };
    let mut syntax = Syntax::default();
    while let Some(word) = parser.next_word()? {
        parser.module_directive(&word, &mut syntax)?;
    }
    Ok(syntax)
}

/// Names of `.file 1 "name"`, which NVRTC puts behind the `.loc` that refer to them.
fn files(tokens: &[(u32, Token)]) -> HashMap<i64, Arc<str>> {
    let file = |window: &[(u32, Token)]| match window {
        [(_, Token::Word(word)), (_, Token::Integer(number)), (_, Token::Text(name))] if word == ".file" => {
            Some((*number, Arc::from(name.as_str())))
        }
        _ => None,
    };
    tokens.windows(3).filter_map(file).collect()
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(u32, Token)>,
    at: usize,
    files: HashMap<i64, Arc<str>>,
    /// Of the last `.loc`.
    source_line: Option<SourceLine>,
    /// Operands around the one that is read.
    nested: u32,
}

impl Parser<'_> {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.0)
    }

    fn error<T>(&self, problem: &str) -> Result<T> {
        let line = self.line();
        let text = excerpt(self.text.lines().nth(line as usize - 1).unwrap_or_default());
        Err(EmulationError::Syntax { line, text, problem: problem.to_string() })
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.1)
    }

    fn take(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(&Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: char) -> Result<()> {
        if self.take(mark) { Ok(()) } else { self.error(&format!("expected `{mark}`")) }
    }

    fn take_word(&mut self) -> Option<String> {
        let Some(Token::Word(word)) = self.peek() else { return None };
        let word = word.clone();
        self.at += 1;
        Some(word)
    }

    fn expect_word(&mut self) -> Result<String> {
        self.take_word().map_or_else(|| self.error("expected a name"), Ok)
    }

    /// The next word; none at the end of the file.
    fn next_word(&mut self) -> Result<Option<String>> {
        if self.peek().is_none() { Ok(None) } else { self.expect_word().map(Some) }
    }

    fn integer(&mut self) -> Result<i64> {
        let Some(&Token::Integer(value)) = self.peek() else { return self.error("expected an integer") };
        self.at += 1;
        Ok(value)
    }

    fn size(&mut self) -> Result<u32> {
        let value = self.integer()?;
        u32::try_from(value).or_else(|_| self.error("expected a size"))
    }

    /// Skips what is left of a line: for directives that end there.
    fn skip_line(&mut self, line: u32) {
        while self.tokens.get(self.at).is_some_and(|t| t.0 == line) {
            self.at += 1;
        }
    }

    fn module_directive(&mut self, word: &str, syntax: &mut Syntax) -> Result<()> {
        let line = self.tokens[self.at - 1].0;
        match word {
            ".version" | ".address_size" | ".file" => self.skip_line(line),
            ".target" => {
                syntax.target = self.expect_word()?;
                self.skip_line(line);
            }
            ".visible" | ".extern" | ".weak" => {}
            ".section" => self.skip_block()?,
            ".entry" => {
                let kernel = self.kernel()?;
                syntax.kernels.push(kernel);
            }
            ".global" | ".const" | ".shared" => {
                let variable = self.variable(word)?;
                self.expect(';')?;
                syntax.variables.push(variable);
            }
            _ => {
                self.at -= 1;
                return self.error(&format!("unknown directive `{word}`"));
            }
        }
        Ok(())
    }

    /// `.loc file line column`, and possibly where it was inlined.
    fn location(&mut self, line: u32) -> Result<()> {
        let file = self.integer()?;
        let name = self.files.get(&file).cloned().unwrap_or_else(|| Arc::from(format!("file {file}")));
        self.source_line = Some(SourceLine { file: name, line: self.size()? });
        self.skip_line(line);
        Ok(())
    }

    fn skip_block(&mut self) -> Result<()> {
        while !matches!(self.peek(), None | Some(Token::Mark('}'))) {
            self.at += 1;
        }
        self.expect('}')
    }

    fn kernel(&mut self) -> Result<Kernel> {
        let name = self.expect_word()?;
        let mut params = Vec::new();
        if self.take('(') {
            while !self.take(')') {
                let word = self.expect_word()?;
                params.push(self.variable(&word)?);
                self.take(',');
            }
        }
        // `.maxntid` and its like bind the compiler, not the emulator.
        while !matches!(self.peek(), None | Some(Token::Mark('{'))) {
            self.at += 1;
        }
        self.expect('{')?;
        self.source_line = None;
        let mut body = Vec::new();
        let mut declared: HashSet<String> = params.iter().map(|param| param.name.clone()).collect();
        let mut depth = 1;
        while depth > 0 {
            match self.statement()? {
                Some(Statement::Variable(variable)) if !declared.insert(variable.name.clone()) => {
                    // In an inner scope PTX allows it; here variables have none.
                    return self.error(&format!("the variable `{}` is declared twice", variable.name));
                }
                Some(statement) => {
                    depth += i32::from(matches!(statement, Statement::Open));
                    depth -= i32::from(matches!(statement, Statement::Close));
                    body.push(statement);
                }
                None if self.peek().is_none() => return self.error("the kernel does not end"),
                None => {}
            }
        }
        body.pop();
        Ok(Kernel { name, params, body })
    }

    /// The declaration after `.global`, `.shared` or `.param`, up to but without its end.
    fn variable(&mut self, space: &str) -> Result<Variable> {
        let space = match space {
            ".global" | ".const" => VariableSpace::Global,
            ".local" => VariableSpace::Local,
            ".shared" => VariableSpace::Shared,
            ".param" => VariableSpace::Param,
            _ => return self.error(&format!("no variables in `{space}`")),
        };
        let mut align = None;
        let mut element = 0;
        let mut of_pointee = false;
        let name = loop {
            let word = self.expect_word()?;
            match word.as_str() {
                // What follows is said of what the parameter points to.
                ".ptr" => of_pointee = true,
                ".global" | ".shared" | ".const" | ".local" if of_pointee => {}
                ".align" if of_pointee => drop(self.size()?),
                ".align" => align = Some(self.size()?),
                _ if word.starts_with('.') => element = self.element_bytes(&word)?,
                _ => break word,
            }
        };
        let mut bytes = element;
        while self.take('[') {
            let count = if self.peek() == Some(&Token::Mark(']')) { 0 } else { self.size()? };
            let Some(product) = bytes.checked_mul(count) else { return self.error("expected a size below 4 GiB") };
            bytes = product;
            self.expect(']')?;
        }
        let initial = if self.take('=') { self.initial()? } else { Vec::new() };
        Ok(Variable { space, name, align: align.unwrap_or(element), element, bytes, initial })
    }

    fn element_bytes(&mut self, class: &str) -> Result<u32> {
        let digits = class.trim_start_matches(|c: char| !c.is_ascii_digit());
        match digits.parse::<u32>() {
            Ok(bits @ (8 | 16 | 32 | 64)) => Ok(bits / 8),
            _ => self.error(&format!("unknown type `{class}`")),
        }
    }

    fn initial(&mut self) -> Result<Vec<u64>> {
        let braces = self.take('{');
        let mut values = Vec::new();
        loop {
            values.push(match self.peek() {
                Some(&Token::Integer(value)) => value as u64,
                Some(&Token::Float32(bits)) => u64::from(bits),
                Some(&Token::Float64(bits)) => bits,
                _ => return self.error("expected a number"),
            });
            self.at += 1;
            if !(braces && self.take(',')) {
                break;
            }
        }
        if braces {
            self.expect('}')?;
        }
        Ok(values)
    }

    /// One statement; none for a directive that says nothing to the emulator.
    fn statement(&mut self) -> Result<Option<Statement>> {
        let line = self.line();
        if self.take('{') {
            return Ok(Some(Statement::Open));
        }
        if self.take('}') {
            return Ok(Some(Statement::Close));
        }
        if self.take('@') {
            let negated = self.take('!');
            let register = self.expect_word()?;
            let opcode = self.expect_word()?;
            return self.instruction(line, Some(Guard { register, negated }), opcode).map(Some);
        }
        let word = self.expect_word()?;
        match word.as_str() {
            ".loc" => self.location(line)?,
            ".pragma" => self.skip_line(line),
            ".reg" => return self.registers(line).map(Some),
            ".shared" | ".local" => {
                let variable = self.variable(&word)?;
                self.expect(';')?;
                return Ok(Some(Statement::Variable(variable)));
            }
            _ if word.starts_with('.') => {
                self.at -= 1;
                return self.error(&format!("unknown directive `{word}`"));
            }
            _ if self.take(':') => return Ok(Some(Statement::Label { line, name: word })),
            _ => return self.instruction(line, None, word).map(Some),
        }
        Ok(None)
    }

    fn registers(&mut self, line: u32) -> Result<Statement> {
        let class = self.expect_word()?;
        let mut names = Vec::new();
        loop {
            let name = self.expect_word()?;
            let mut count = None;
            if self.take('<') {
                count = Some(self.size()?);
                if count > Some(MOST_REGISTERS) {
                    return self.error(&format!("more than {MOST_REGISTERS} registers"));
                }
                self.expect('>')?;
            }
            names.push((name, count));
            if !self.take(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(Statement::Registers { line, class, names })
    }

    fn instruction(&mut self, line: u32, guard: Option<Guard>, opcode: String) -> Result<Statement> {
        let mut operands = Vec::new();
        while !self.take(';') {
            operands.push(self.operand()?);
            if !self.take(',') {
                self.expect(';')?;
                break;
            }
        }
        let source_line = self.source_line.clone();
        Ok(Statement::Instruction(Instruction { line, source_line, guard, opcode, operands }))
    }

    fn operand(&mut self) -> Result<Operand> {
        if self.nested == MOST_NESTED {
            return self.error("operands within operands");
        }
        self.nested += 1;
        let operand = self.operand_within();
        self.nested -= 1;
        operand
    }

    fn operand_within(&mut self) -> Result<Operand> {
        if self.take('{') {
            let mut parts = vec![self.operand()?];
            while self.take(',') {
                parts.push(self.operand()?);
            }
            self.expect('}')?;
            return Ok(Operand::Vector(parts));
        }
        if self.take('[') {
            let operand = self.operand()?;
            self.expect(']')?;
            return Ok(match operand {
                Operand::Address { .. } => operand,
                base => Operand::Address { base: Box::new(base), offset: 0 },
            });
        }
        if self.take('!') {
            return Ok(Operand::Not(Box::new(self.operand()?)));
        }
        let simple = match self.peek() {
            Some(Token::Word(word)) => Operand::Name(word.clone()),
            Some(&Token::Integer(value)) => Operand::Integer(value),
            Some(&Token::Float32(bits)) => Operand::Float32(bits),
            Some(&Token::Float64(bits)) => Operand::Float64(bits),
            _ => return self.error("expected an operand"),
        };
        self.at += 1;
        if self.take('|') {
            return Ok(Operand::Pair(Box::new(simple), Box::new(self.operand()?)));
        }
        if self.take('+') {
            return Ok(Operand::Address { base: Box::new(simple), offset: self.integer()? });
        }
        Ok(simple)
    }
}
