//! A warp: 32 lanes in step, and a stack of the ways that they went.

use super::asynchronous::{Copies, Wgmmas};
use super::op::{Access, Address, AsyncCopy, Atomic, Op, Participants, Program, Step, Wgmma};
use super::registers::{Lanes, Registers, WARP};
use super::special::Place;
use crate::decode::{Descriptor, Register, run_wgmma};
use crate::error::{Fault, FaultKind, Space};
use crate::memory::{Memory, Shared, Stamp};
use std::sync::atomic::{Ordering, fence};

/// Instructions after which a warp is taken to wait for what never comes.
const WARP_LIMIT: u64 = 1 << 30;

/// What all warps of a launch see.
#[derive(Clone, Copy)]
pub(crate) struct Environment<'a> {
    pub program: &'a Program,
    pub memory: &'a Memory,
    pub params: &'a [u8],
}

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It waits at the barrier of that number.
    Barrier(u32),
    /// All lanes have exited.
    Done,
}

/// Lanes on one way: they go on at `at`, and are joined by others at `reconverge`.
#[derive(Clone, Copy, Debug)]
struct Way {
    at: usize,
    reconverge: usize,
    lanes: Lanes,
}

pub(super) struct Warp {
    registers: Registers,
    place: Place,
    ways: Vec<Way>,
    /// Lanes that have not exited.
    live: Lanes,
    /// Barriers of the warp so far, from 1.
    time: u64,
    copies: Copies,
    wgmmas: Wgmmas,
    /// Allocation of the last global access.
    hint: usize,
    pub instructions: u64,
    pub thread_instructions: u64,
}

/// A fault, and the lane to blame.
type Blame = (FaultKind, Option<u32>);

fn lanes_of(mut lanes: Lanes) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (lanes != 0).then(|| {
            let lane = lanes.trailing_zeros();
            lanes &= lanes - 1;
            lane as usize
        })
    })
}

fn blame(lane: usize) -> impl Fn(FaultKind) -> Blame {
    move |kind| (kind, Some(lane as u32))
}

impl Warp {
    pub fn new(program: &Program, place: Place) -> Self {
        let plan = &program.registers;
        let mut registers = Registers {
            words: vec![[0; WARP]; plan.words],
            doubles: vec![[0; WARP]; plan.doubles],
            predicates: vec![0; plan.predicates],
        };
        for &(register, bits) in &plan.constants {
            registers.fill(register.class, register.slot, bits);
        }
        for &(special, slot) in &plan.specials {
            registers.words[slot.0 as usize] = std::array::from_fn(|lane| special.value(&place, lane as u32));
        }
        let threads: u32 = place.threads.iter().product();
        let count = (threads - place.warp * 32).min(32);
        let live = Lanes::MAX >> (32 - count);
        let ways = vec![Way { at: 0, reconverge: usize::MAX, lanes: live }];
        let (copies, wgmmas) = (Copies::default(), Wgmmas::default());
        let (instructions, thread_instructions) = (0, 0);
        Self { registers, place, ways, live, time: 1, copies, wgmmas, hint: 0, instructions, thread_instructions }
    }

    /// Runs until the next block barrier or the end.
    pub fn run(&mut self, env: Environment, shared: &mut Shared, block_time: u64) -> Result<Stop, Box<Fault>> {
        self.time += 1;
        while let Some(&Way { at, reconverge, lanes }) = self.ways.last() {
            if lanes == 0 || at == reconverge {
                self.ways.pop();
                continue;
            }
            // The end of the kernel's text is a `ret`.
            let Some(step) = env.program.steps.get(at) else {
                self.exit(lanes);
                continue;
            };
            let active = lanes & self.guard(step);
            self.instructions += 1;
            self.thread_instructions += u64::from(active.count_ones());
            self.set_next(at + 1);
            if active == 0 {
                continue;
            }
            let stop = self.step(env, shared, block_time, step, active);
            match stop.map_err(|(kind, lane)| self.fault(step, kind, lane))? {
                Some(stop) => return Ok(stop),
                None if self.instructions >= WARP_LIMIT => {
                    return Err(self.fault(step, FaultKind::NoEnd(WARP_LIMIT), None));
                }
                None => {}
            }
        }
        Ok(Stop::Done)
    }

    /// A fault of this warp at `step`.
    pub fn fault(&self, step: &Step, kind: FaultKind, lane: Option<u32>) -> Box<Fault> {
        Box::new(Fault {
            kind,
            line: step.line,
            opcode: step.opcode.clone(),
            source_line: step.source_line.clone(),
            block: self.place.block,
            warp: self.place.warp,
            lane,
        })
    }

    /// The step before the one that comes next: the barrier, where the warp waits at one.
    pub fn last_step<'a>(&self, program: &'a Program) -> &'a Step {
        let at = self.ways.last().map_or(program.steps.len(), |way| way.at);
        &program.steps[at.clamp(1, program.steps.len()) - 1]
    }

    fn guard(&self, step: &Step) -> Lanes {
        step.guard.map_or(Lanes::MAX, |(register, negated)| {
            let row = self.registers.predicates[register.slot.0 as usize];
            if negated { !row } else { row }
        })
    }

    fn set_next(&mut self, at: usize) {
        if let Some(way) = self.ways.last_mut() {
            way.at = at;
        }
    }

    fn exit(&mut self, lanes: Lanes) {
        self.live &= !lanes;
        for way in &mut self.ways {
            way.lanes &= !lanes;
        }
    }

    fn step(
        &mut self,
        env: Environment,
        shared: &mut Shared,
        block_time: u64,
        step: &Step,
        active: Lanes,
    ) -> Result<Option<Stop>, Blame> {
        let now = Stamp::new(self.place.warp, self.time, block_time);
        if !matches!(step.op, Op::Wgmma(_)) && self.wgmmas.writes_any(&step.registers) {
            return Err((FaultKind::WgmmaPending, None));
        }
        match &step.op {
            Op::Lanewise(work) => work(&mut self.registers, active),
            Op::Collective { participants, work } => {
                self.check_participants(*participants, active)?;
                work(&mut self.registers, active).map_err(|kind| (kind, None))?;
            }
            Op::Load(access) => self.load(env, shared, now, access, active)?,
            Op::Store(access) => self.store(env, shared, now, access, active)?,
            Op::Atomic(atomic) => self.atomic(env, atomic, active)?,
            Op::AsyncCopy(copy) => self.issue_copy(env, shared, now, copy, active)?,
            Op::AsyncCommit => self.copies.commit(active),
            Op::AsyncWait(left) => self.wait_copies(env, shared, now, *left, active)?,
            Op::AsyncWaitAll => {
                self.copies.commit(active);
                self.wait_copies(env, shared, now, 0, active)?;
            }
            Op::Wgmma(wgmma) => self.issue_wgmma(wgmma, active)?,
            Op::WgmmaFence => self.wgmmas.fenced = true,
            Op::WgmmaCommit => self.wgmmas.commit(),
            Op::WgmmaWait(left) => self.wait_wgmmas(shared, now, *left)?,
            Op::Fence => fence(Ordering::SeqCst),
            Op::WarpBarrier(members) => {
                self.check_participants(Participants::Members(*members), active)?;
                // A barrier of some lanes counts for the whole warp: races of the others may go unseen.
                self.time += 1;
            }
            Op::Barrier(number) => return self.barrier(*number, active).map(Some),
            Op::Branch { target, reconverge } => self.branch(*target, *reconverge, active),
            Op::Exit => self.exit(active),
        }
        Ok(None)
    }

    fn branch(&mut self, target: usize, reconverge: usize, taken: Lanes) {
        let Some(way) = self.ways.last_mut() else { return };
        let stay = way.lanes & !taken;
        if stay == 0 {
            way.at = target;
            return;
        }
        let next = way.at;
        way.at = reconverge;
        self.ways.push(Way { at: next, reconverge, lanes: stay });
        self.ways.push(Way { at: target, reconverge, lanes: taken });
    }

    fn barrier(&mut self, number: Register, active: Lanes) -> Result<Stop, Blame> {
        if active != self.live {
            return Err((FaultKind::DivergentBarrier { active, live: self.live }, None));
        }
        let lane = active.trailing_zeros() as usize;
        Ok(Stop::Barrier(self.registers.bits(number.class, number.slot, lane) as u32))
    }

    fn check_participants(&self, participants: Participants, active: Lanes) -> Result<(), Blame> {
        let needed = match participants {
            Participants::Active => return Ok(()),
            Participants::All => Lanes::MAX,
            Participants::Members(members) => {
                self.registers.words[members.slot.0 as usize][active.trailing_zeros() as usize]
            }
        };
        if needed == active { Ok(()) } else { Err((FaultKind::MissingLanes { needed, active }, None)) }
    }

    #[inline(always)]
    fn address(&self, address: &Address, lane: usize) -> u64 {
        address.at(self.registers.bits(address.base.class, address.base.slot, lane))
    }

    fn load(
        &mut self,
        env: Environment,
        shared: &mut Shared,
        now: Stamp,
        access: &Access,
        active: Lanes,
    ) -> Result<(), Blame> {
        let bytes = access.width * access.elements.len() as u32;
        let bits = 8 * access.width;
        for lane in lanes_of(active) {
            let address = self.address(&access.address, lane);
            let value = match access.space {
                Space::Global => env.memory.load(address, bytes, &mut self.hint),
                Space::Shared => shared.load(address, bytes, now.lane(lane as u32)),
                Space::Param => load_param(env.params, address, bytes),
            };
            let value = value.map_err(blame(lane))?;
            for (i, element) in access.elements.iter().enumerate() {
                let above = 64 - bits;
                let raw = ((value >> (bits * i as u32)) as u64) << above;
                let extended = if access.signed { (raw as i64 >> above) as u64 } else { raw >> above };
                self.registers.set_bits(element.class, element.slot, lane, extended);
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        env: Environment,
        shared: &mut Shared,
        now: Stamp,
        access: &Access,
        active: Lanes,
    ) -> Result<(), Blame> {
        let bytes = access.width * access.elements.len() as u32;
        let bits = 8 * access.width;
        for lane in lanes_of(active) {
            let address = self.address(&access.address, lane);
            let mut value = 0u128;
            for (i, element) in access.elements.iter().enumerate() {
                let element = self.registers.bits(element.class, element.slot, lane) & (u64::MAX >> (64 - bits));
                value |= u128::from(element) << (bits * i as u32);
            }
            let stored = match access.space {
                Space::Shared => shared.store(address, bytes, value, now.lane(lane as u32)),
                Space::Global | Space::Param => env.memory.store(address, bytes, value, &mut self.hint),
            };
            stored.map_err(blame(lane))?;
        }
        Ok(())
    }

    fn atomic(&mut self, env: Environment, atomic: &Atomic, active: Lanes) -> Result<(), Blame> {
        for lane in lanes_of(active) {
            let address = self.address(&atomic.address, lane);
            let [a, b] = atomic.operands.map(|operand| self.registers.words[operand.slot.0 as usize][lane]);
            let old = env.memory.update(address, |old| (atomic.function)(old, a, b), &mut self.hint);
            let old = old.map_err(blame(lane))?;
            self.registers.words[atomic.old.slot.0 as usize][lane] = old;
        }
        Ok(())
    }

    fn issue_copy(
        &mut self,
        env: Environment,
        shared: &mut Shared,
        now: Stamp,
        copy: &AsyncCopy,
        active: Lanes,
    ) -> Result<(), Blame> {
        for lane in lanes_of(active) {
            let (to, from) = (self.address(&copy.to, lane), self.address(&copy.from, lane));
            // Read again when it arrives; a bad address shows here, at the instruction that has it.
            env.memory.load(from, copy.bytes, &mut self.hint).map_err(blame(lane))?;
            shared.begin_copy(to, copy.bytes, now.lane(lane as u32)).map_err(blame(lane))?;
            self.copies.issue(lane as u32, to, from, copy.bytes);
        }
        Ok(())
    }

    fn wait_copies(
        &mut self,
        env: Environment,
        shared: &mut Shared,
        now: Stamp,
        left: u32,
        active: Lanes,
    ) -> Result<(), Blame> {
        for copy in self.copies.arrived(active, left) {
            let arrived = env
                .memory
                .load(copy.from, copy.bytes, &mut self.hint)
                .and_then(|value| shared.end_copy(copy.to, copy.bytes, value, now.lane(copy.lane)));
            arrived.map_err(|kind| (kind, Some(copy.lane)))?;
        }
        Ok(())
    }

    fn issue_wgmma(&mut self, wgmma: &Wgmma, active: Lanes) -> Result<(), Blame> {
        self.check_participants(Participants::All, active)?;
        if !self.wgmmas.fenced {
            return Err((FaultKind::WgmmaFence, None));
        }
        let bits = self.registers.bits(wgmma.b.class, wgmma.b.slot, 0);
        let descriptor = Descriptor::new(bits).ok_or((FaultKind::Descriptor(bits), None))?;
        let accumulate = self.registers.bits(wgmma.accumulate.class, wgmma.accumulate.slot, 0) == 1;
        self.wgmmas.issue(wgmma.clone(), descriptor, accumulate);
        Ok(())
    }

    fn wait_wgmmas(&mut self, shared: &mut Shared, now: Stamp, left: u32) -> Result<(), Blame> {
        self.wgmmas.fenced = false;
        for wgmma in self.wgmmas.arrived(left) {
            let read = |address| shared.load(address, 16, now.whole_warp());
            run_wgmma(&mut self.registers, &wgmma.op, wgmma.descriptor, wgmma.accumulate, read)
                .map_err(|kind| (kind, None))?;
        }
        Ok(())
    }
}

fn load_param(params: &[u8], address: u64, bytes: u32) -> Result<u128, FaultKind> {
    let at = address as usize;
    let Some(found) = params.get(at..at.saturating_add(bytes as usize)) else {
        return Err(FaultKind::OutOfBounds { space: Space::Param, address, bytes });
    };
    let mut value = [0; 16];
    value[..bytes as usize].copy_from_slice(found);
    Ok(u128::from_le_bytes(value))
}
