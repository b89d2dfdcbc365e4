//! A warp: 32 lanes in step, and a stack of the ways that they went.

use super::asynchronous::{Copies, Wgmmas};
use super::barrier::{Arrival, BARRIERS, Barrier};
use super::elements::{value_of, words_of};
use super::generic::Local;
use super::machine::{Blame, Machine, blame, lanes_of};
use super::op::{Access, Op, Participants, Program, Step, Work};
use super::registers::{Lanes, Registers, WARP};
use super::special::Place;
use super::wgmma;
use crate::decode::Register;
use crate::error::{Fault, FaultKind, Space};
use crate::memory::{Cursor, Memory, Shared, Stamp, ThreadCopy, check_alignment};
use std::sync::atomic::{Ordering, fence};

/// Instructions after which a warp is taken to wait for what never comes.
const WARP_LIMIT: u64 = 1 << 30;

/// What a register holds that nobody wrote, where a GPU's holds whatever was left in it: NaN as f64, f32, f16, bf16,
/// E4M3 and E5M2, and no address. Of a predicate every second lane holds.
const UNWRITTEN: u32 = 0x7FFF_7FFF;

/// What all warps of a launch see.
#[derive(Clone, Copy)]
pub(crate) struct Environment<'a> {
    pub program: &'a Program,
    pub memory: &'a Memory,
    /// Number of the launch.
    pub launch: u64,
    pub params: &'a [u8],
}

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It came to a barrier.
    Barrier(Arrival),
    /// It tested an mbarrier whose phase had not ended.
    Poll,
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
    local: Local,
    copies: Copies,
    wgmmas: Wgmmas,
    hint: Cursor,
    pub instructions: u64,
    pub thread_instructions: u64,
}

impl Warp {
    pub fn new(program: &Program, place: Place, hint: Cursor) -> Self {
        let plan = &program.registers;
        let mut registers = Registers {
            words: vec![[UNWRITTEN; WARP]; plan.words],
            doubles: vec![[u64::from(UNWRITTEN) << 32 | u64::from(UNWRITTEN); WARP]; plan.doubles],
            predicates: vec![0xAAAA_AAAA; plan.predicates],
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
        let local = Local::new(program.local_bytes);
        let (instructions, thread_instructions) = (0, 0);
        Self { registers, place, ways, live, local, copies, wgmmas, hint, instructions, thread_instructions }
    }

    /// Runs until it must wait, or to the end.
    pub fn run(&mut self, env: Environment, shared: &mut Shared) -> Result<Stop, Box<Fault>> {
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
            let stop = self.step(env, shared, step, active);
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
        step: &Step,
        active: Lanes,
    ) -> Result<Option<Stop>, Blame> {
        let now = shared.clocks.now(self.place.warp as usize);
        if !matches!(step.op, Op::Wgmma(_)) && self.wgmmas.writes_any(&step.registers) {
            return Err((FaultKind::WgmmaPending, None));
        }
        match &step.op {
            Op::Lanewise(work) => work(&mut self.registers, active),
            Op::Collective { participants, work } => {
                self.check_participants(*participants, active)?;
                work(&mut self.registers, active).map_err(|kind| (kind, None))?;
            }
            Op::Machine(work) => return self.work(env, shared, now, work, active),
            Op::Load(access) => self.load(env, shared, now, access, active)?,
            Op::Store(access) => self.store(env, shared, now, access, active)?,
            Op::AsyncCommit => self.copies.commit(active),
            Op::AsyncWait(left) => self.wait_copies(env, shared, now, *left, active)?,
            Op::AsyncWaitAll => {
                self.copies.commit(active);
                self.wait_copies(env, shared, now, 0, active)?;
            }
            Op::Wgmma(op) => wgmma::issue(&mut self.machine(env, shared, now), op, active)?,
            Op::WgmmaFence => self.wgmmas.fenced = true,
            Op::WgmmaCommit => self.wgmmas.commit(),
            Op::WgmmaWait(left) => {
                wgmma::wait(&mut self.machine(env, shared, now), *left).map_err(|kind| (kind, None))?;
            }
            Op::Fence => {
                fence(Ordering::SeqCst);
                self.hint.fence();
            }
            Op::ProxyFence => shared.clocks.fence_proxy(self.place.warp as usize),
            Op::WarpBarrier(members) => {
                self.check_participants(Participants::Members(*members), active)?;
                // A barrier of some lanes counts for the whole warp: races of the others may go unseen.
                shared.clocks.meet(self.place.warp as usize);
            }
            Op::Barrier(barrier) => {
                let arrival = self.barrier(barrier, active)?;
                shared.clocks.meet(self.place.warp as usize);
                return Ok(Some(Stop::Barrier(arrival)));
            }
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

    fn barrier(&mut self, barrier: &Barrier, active: Lanes) -> Result<Arrival, Blame> {
        if active != self.live {
            return Err((FaultKind::DivergentBarrier { active, live: self.live }, None));
        }
        let in_lane = |register: Register, lane: usize| self.registers.bits(register.class, register.slot, lane) as u32;
        let value = |register: Register| {
            let first = in_lane(register, active.trailing_zeros() as usize);
            let same = lanes_of(active).all(|lane| in_lane(register, lane) == first);
            if same { Ok(first) } else { Err((FaultKind::BarrierLanes, None)) }
        };
        let (number, threads) = (value(barrier.number)?, barrier.threads.map(value).transpose()?);
        if number >= BARRIERS {
            return Err((FaultKind::BarrierNumber(number), None));
        }
        let votes = barrier.reduction.map_or([0; 2], |reduction| {
            let row = self.registers.predicates[reduction.vote.slot.0 as usize];
            [active & if reduction.negated { !row } else { row }, active]
        });
        Ok(Arrival { number, threads, waits: barrier.waits, votes })
    }

    /// The barrier at which the warp waited is complete, with so many votes for and so many voters.
    pub fn leave_barrier(&mut self, program: &Program, [votes, voters]: [u32; 2]) {
        let Op::Barrier(Barrier { reduction: Some(reduction), .. }) = &self.last_step(program).op else { return };
        let result = u64::from((reduction.decide)(votes, voters));
        for lane in lanes_of(self.live) {
            self.registers.set_bits(reduction.d.class, reduction.d.slot, lane, result);
        }
    }

    fn machine<'a>(&'a mut self, env: Environment<'a>, shared: &'a mut Shared, now: Stamp) -> Machine<'a> {
        let Self { registers, local, copies, wgmmas, hint, .. } = self;
        Machine { registers, shared, memory: env.memory, local, copies, wgmmas, now, hint }
    }

    fn work(
        &mut self,
        env: Environment,
        shared: &mut Shared,
        now: Stamp,
        work: &Work,
        active: Lanes,
    ) -> Result<Option<Stop>, Blame> {
        let stop = work(&mut self.machine(env, shared, now), active)?;
        if stop == Some(Stop::Poll) {
            self.yield_to_others();
        }
        Ok(stop)
    }

    /// Lanes that wait let the others of their warp go on: the lowest way whose lanes have no further way above.
    fn yield_to_others(&mut self) {
        let mut above = 0;
        let mut lowest = None;
        for (i, way) in self.ways.iter().enumerate().rev() {
            if way.lanes != 0 && way.lanes & above == 0 {
                lowest = Some(i);
            }
            above |= way.lanes;
        }
        if let Some(i) = lowest {
            let way = self.ways.remove(i);
            self.ways.push(way);
        }
    }

    fn check_participants(&self, participants: Participants, active: Lanes) -> Result<(), Blame> {
        let wrong = match participants {
            Participants::Active => None,
            Participants::All => (active != Lanes::MAX).then_some(Lanes::MAX),
            // All lanes must have the same mask, and all that it names be here or have exited (PTX ISA, `shfl.sync`).
            Participants::Members(members) => {
                let masks = self.registers.words[members.slot.0 as usize];
                let first = masks[active.trailing_zeros() as usize];
                let fits = |mask: Lanes| mask == first && mask & self.live == active;
                lanes_of(active).map(|lane| masks[lane]).find(|&mask| !fits(mask))
            }
        };
        wrong.map_or(Ok(()), |needed| Err((FaultKind::MissingLanes { needed, active }, None)))
    }

    fn load(
        &mut self,
        env: Environment,
        shared: &mut Shared,
        now: Stamp,
        access: &Access,
        active: Lanes,
    ) -> Result<(), Blame> {
        let bytes = access.bytes();
        let mut values = [[0; 4]; WARP];
        let addresses = access.address.of_lanes(&self.registers);
        for lane in lanes_of(active) {
            let address = addresses[lane];
            let value = match access.space {
                Space::Global => shared.load_global(env.memory, address, bytes, &mut self.hint, now.lane(lane as u32)),
                Space::Shared => shared.load(address, bytes, now.lane(lane as u32)),
                Space::Param | Space::Local => load_param(env.params, address, bytes),
            };
            values[lane] = words_of(value.map_err(blame(lane))?);
        }
        access.write_elements(&mut self.registers, &values, active);
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
        let bytes = access.bytes();
        let values = access.read_elements(&self.registers);
        let addresses = access.address.of_lanes(&self.registers);
        for lane in lanes_of(active) {
            let address = addresses[lane];
            let value = value_of(values[lane]);
            let stored = match access.space {
                Space::Shared => shared.store(address, bytes, value, now.lane(lane as u32)),
                _ => shared.store_global(env.memory, address, bytes, value, &mut self.hint, now.lane(lane as u32)),
            };
            stored.map_err(blame(lane))?;
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
            let lane = copy.stamp.lane_index();
            let copy = ThreadCopy { stamp: now.lane(lane), ..copy };
            copy.arrive(shared, env.memory, &mut self.hint).map_err(|kind| (kind, Some(lane)))?;
        }
        Ok(())
    }
}

fn load_param(params: &[u8], address: u64, bytes: u32) -> Result<u128, FaultKind> {
    check_alignment(Space::Param, address, bytes)?;
    let at = address as usize;
    let Some(found) = params.get(at..at.saturating_add(bytes as usize)) else {
        return Err(FaultKind::OutOfBounds { space: Space::Param, address, bytes });
    };
    let mut value = [0; 16];
    value[..bytes as usize].copy_from_slice(found);
    Ok(u128::from_le_bytes(value))
}
