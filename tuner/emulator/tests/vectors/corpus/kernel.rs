//! The kernel around a form: each thread loads its operands, runs the body, stores its results.
//!
//! A body may name: `a0`, `a1`, … (operands) and `d0`, `d1`, … (results); `in`, the 64-bit address of the thread's
//! operands, 8 bytes each, and `params`, the parameter; `room`, shared memory of all, and `slot`, the 32-bit address
//! of the thread's own 16 bytes of it; `p0` to `p3`, `h0` to `h3`, `r0` to `r7` and `w0` to `w3`, free registers.

use super::table::{Form, Kind, Operand};
use super::{BLOCK, CONSTANTS, SLOT, TARGET};
use std::fmt::Write;

/// Bytes of shared memory: A and B of a `wgmma`, as wide as they get.
const ROOM: usize = 16384;

impl Operand {
    /// Register type and bits in memory.
    fn register(&self) -> (&'static str, u32) {
        match self {
            Self::Predicate => (".pred", 8),
            Self::Integer(16) | Self::F16 | Self::Bf16 | Self::E4m3x2 => (".b16", 16),
            Self::Integer(64) | Self::F64 | Self::Fragment(64) => (".b64", 64),
            _ => (".b32", 32),
        }
    }
}

impl Kind {
    fn register(self) -> &'static str {
        match self {
            Self::B16 => ".b16",
            Self::B32 => ".b32",
            Self::B64 => ".b64",
            Self::Predicate => ".pred",
        }
    }
}

impl Form {
    /// The kernel, whose entry is `k`.
    pub fn ptx(&self) -> String {
        let (operands, results) = (self.operands.len(), self.results.len());
        let param_bytes = 16 + 8 * CONSTANTS.len();
        let mut text = format!(
            "// {}
.version 9.0
.target {TARGET}
.address_size 64
.visible .entry k(.param .align 8 .b8 params[{param_bytes}])
.maxntid {BLOCK}
{{
    .reg .pred p<4>;
    .reg .b16 h<4>;
    .reg .b32 r<8>, slot, thread, flag;
    .reg .b64 w<4>, in, out, offset;
    .shared .align 1024 .b8 room[{ROOM}];
",
            self.name
        );
        self.declare(&mut text);
        let _ = write!(
            text,
            "    mov.u32 flag, %ctaid.x;
    mov.u32 thread, %tid.x;
    mov.u32 slot, room;
    mad.lo.u32 slot, thread, 16, slot;
    mad.lo.u32 thread, flag, {}, thread;
    ld.param.u64 in, [params];
    ld.param.u64 out, [params+8];
    mad.wide.u32 in, thread, {}, in;
    mad.wide.u32 out, thread, {}, out;
",
            self.block(),
            operands * SLOT,
            results * SLOT
        );
        self.load(&mut text);
        text += &self.body;
        self.store(&mut text);
        text += "    ret;\n}\n";
        text
    }

    fn declare(&self, text: &mut String) {
        for (i, operand) in self.operands.iter().enumerate() {
            let _ = writeln!(text, "    .reg {} a{i};", operand.register().0);
        }
        for (i, result) in self.results.iter().enumerate() {
            let _ = writeln!(text, "    .reg {} d{i};", result.register());
        }
    }

    fn load(&self, text: &mut String) {
        for (i, operand) in self.operands.iter().enumerate() {
            let at = i * SLOT;
            let _ = match operand.register() {
                (".pred", _) => writeln!(text, "    ld.global.u8 flag, [in+{at}];\n    setp.ne.u32 a{i}, flag, 0;"),
                (_, bits) => writeln!(text, "    ld.global.b{bits} a{i}, [in+{at}];"),
            };
        }
    }

    fn store(&self, text: &mut String) {
        for (i, result) in self.results.iter().enumerate() {
            let at = i * SLOT;
            let _ = match result {
                Kind::Predicate => writeln!(text, "    selp.u32 flag, 1, 0, d{i};\n    st.global.u8 [out+{at}], flag;"),
                kind => writeln!(text, "    st.global{} [out+{at}], d{i};", kind.register()),
            };
        }
    }

    /// Bytes of the parameter, for operands at `input` and results at `output`.
    pub fn params(input: u64, output: u64) -> [u64; 2 + CONSTANTS.len()] {
        let mut params = [0; 2 + CONSTANTS.len()];
        params[..2].copy_from_slice(&[input, output]);
        params[2..].copy_from_slice(&CONSTANTS);
        params
    }

    /// Results as a file has them, from the results in memory.
    pub fn packed(&self, output: &[u8]) -> Vec<u8> {
        let slots = output.chunks_exact(SLOT).zip(self.results.iter().cycle());
        slots.flat_map(|(slot, kind)| slot[..kind.bytes()].iter().copied()).collect()
    }
}
