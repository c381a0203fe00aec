//! Runs a launch. Workgroups run one after the other, or take turns if they do not see each other's stores at once.
//! Waves of a workgroup run from barrier to barrier.

use crate::abi::{Start, kernarg_segment};
use crate::code_object::Code;
use crate::coherence::{Caches, Coherence, ScalarCache};
use crate::context::Context;
use crate::decode::Flow;
use crate::launch_args::{Launch, Order};
use crate::wave::{State, Wave};
use crate::{CodeObject, Fault, Memory, Trap};

/// Counts of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions executed, counted once per wave.
    pub wave_instructions: u64,
}

/// The limit of a wave, minutes of real time: a test with more instructions will never end.
const MAX_INSTRUCTIONS: u64 = 1 << 30;

/// Executes a launch to its end.
pub fn run(object: &CodeObject, launch: &Launch<'_>, memory: &mut dyn Memory) -> Result<Stats, Trap> {
    run_after(object, launch, memory, &mut ScalarCache::default())
}

/// Runs a launch without invalidating the scalar cache before it, if caches are not coherent.
pub fn run_after(
    object: &CodeObject,
    launch: &Launch<'_>,
    memory: &mut dyn Memory,
    scalar: &mut ScalarCache,
) -> Result<Stats, Trap> {
    let refuse = |fault| Trap {
        kernel: launch.kernel.name.clone(),
        address: launch.kernel.descriptor.entry,
        instruction: String::new(),
        workgroup: [0; 3],
        wave: 0,
        fault,
    };
    let kernarg = kernarg_segment(launch).map_err(refuse)?;
    let code = object.code().map_err(|error| refuse(Fault::Launch(error.to_string())))?;
    let start = Start::new(object, code, launch).map_err(refuse)?;
    let lds = launch.kernel.group_segment_size as usize + launch.dynamic_lds as usize;
    let lanes = object.target_details().lanes;
    let weak = launch.coherence == Coherence::Weak;
    let places = if weak { RESIDENT } else { 1 };
    let caches = weak.then(|| Caches::new(places, std::mem::take(scalar)));
    let mut context = Context { memory, image: object.image(), kernarg: &kernarg, lds: Vec::new(), clock: 0, caches };
    let [x, y, z] = launch.grid.map(u64::from);
    let count = x * y * z;
    let mut waiting = (0..count as usize).map(|index| {
        let index = index as u64;
        let index = if launch.order == Order::Up { index } else { count - 1 - index };
        [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
    });
    let waves = || (0..start.waves).map(|_| Wave::new(lanes)).collect();
    let mut free: Vec<_> =
        (0..places).map(|place| Workgroup { place, waves: waves(), lds: vec![0; lds], id: [0; 3] }).collect();
    // Running workgroups, oldest first.
    let mut resident: Vec<Workgroup> = Vec::new();
    loop {
        let next = if free.is_empty() { None } else { waiting.next() };
        let turns = match next {
            Some(id) => {
                let at = resident.len();
                resident.extend(free.pop());
                resident[at].begin(id, &start);
                1
            }
            None => resident.len(),
        };
        if turns == 0 {
            break;
        }
        // The latest workgroup runs first, and the others only when it pauses again: they stay where they are for as
        // long as possible.
        for turn in (0..resident.len()).rev().take(turns) {
            let workgroup = &mut resident[turn];
            let has_ended = workgroup.run(code, launch.order, &mut context).map_err(|stop| {
                let line = code.line(stop.pc);
                Trap {
                    address: line.map_or(0, |line| line.address),
                    instruction: line.map(|line| line.text.clone()).unwrap_or_default(),
                    workgroup: workgroup.id,
                    wave: stop.wave,
                    ..refuse(*stop.fault)
                }
            })?;
            if has_ended {
                free.push(resident.remove(turn));
                break;
            }
        }
    }
    if let Some(caches) = context.caches.take() {
        *scalar = caches.finish(context.memory);
    }
    Ok(Stats { wave_instructions: context.clock })
}

/// The number of workgroups that take turns if they do not see each other's stores at once. Each wave runs up to its
/// next atomic on global memory. Then the others run, while the wave's stores without a wait are still in flight.
const RESIDENT: usize = 3;

struct Stop {
    wave: usize,
    pc: usize,
    fault: Box<Fault>,
}

/// A workgroup, in a place with waves and LDS.
struct Workgroup {
    place: usize,
    waves: Vec<Wave>,
    lds: Vec<u8>,
    id: [u32; 3],
}

impl Workgroup {
    fn begin(&mut self, id: [u32; 3], start: &Start<'_>) {
        self.lds.fill(0xcd);
        for (number, wave) in self.waves.iter_mut().enumerate() {
            start.begin(wave, number, id);
        }
        self.id = id;
    }

    /// Runs until some of its waves pause or all have ended. Returns true if all have ended.
    fn run(&mut self, code: &Code, order: Order, context: &mut Context<'_>) -> Result<bool, Stop> {
        if let Some(caches) = &mut context.caches {
            caches.group = self.place;
        }
        std::mem::swap(&mut self.lds, &mut context.lds);
        let result = run_waves(code, &mut self.waves, order, context);
        std::mem::swap(&mut self.lds, &mut context.lds);
        result?;
        let has_ended = self.waves.iter().all(|wave| wave.state == State::Ended);
        if let Some(caches) = context.caches.as_mut().filter(|_| has_ended) {
            caches.end_group();
        }
        Ok(has_ended)
    }
}

/// Runs each wave from barrier to barrier, until all have ended or some pause. A barrier is passed when every wave that
/// has not ended has reached it.
fn run_waves(code: &Code, waves: &mut [Wave], order: Order, context: &mut Context<'_>) -> Result<(), Stop> {
    loop {
        for turn in 0..waves.len() {
            let number = if order == Order::Up { turn } else { waves.len() - 1 - turn };
            let wave = &mut waves[number];
            if wave.state == State::Running {
                let result = run_wave(code, wave, context);
                result.map_err(|fault| Stop { wave: number, pc: wave.pc, fault })?;
                if let (State::Ended, Some(caches)) = (wave.state, &mut context.caches) {
                    caches.end_wave(&mut wave.cache);
                }
            }
        }
        let mut met: Vec<&mut Wave> = waves.iter_mut().filter(|wave| wave.state != State::Ended).collect();
        if met.is_empty() || met.iter().any(|wave| wave.state == State::Running) {
            return Ok(());
        }
        if context.caches.is_some() {
            Caches::meet(met.iter_mut().map(|wave| &mut wave.cache));
        }
        met.into_iter().for_each(|wave| wave.state = State::Running);
    }
}

fn run_wave(code: &Code, wave: &mut Wave, context: &mut Context<'_>) -> Result<(), Box<Fault>> {
    let started = context.clock;
    let result = run_until_pause(code, wave, context);
    wave.executed += context.clock - started;
    result
}

fn run_until_pause(code: &Code, wave: &mut Wave, context: &mut Context<'_>) -> Result<(), Box<Fault>> {
    let limit = context.clock + MAX_INSTRUCTIONS.saturating_sub(wave.executed);
    loop {
        let step = match code.step(wave.pc) {
            Some(Ok(step)) => step,
            Some(Err(reason)) => return Err(Box::new(Fault::Unsupported(reason.clone()))),
            None => return Err(Box::new(Fault::Jump(wave.pc as u64))),
        };
        context.clock += 1;
        if context.clock > limit {
            return Err(Box::new(Fault::Endless(MAX_INSTRUCTIONS)));
        }
        match step(wave, context)? {
            Flow::Next => wave.pc += 1,
            Flow::Jump(address) => wave.pc = code.index(address).ok_or(Fault::Jump(address))?,
            Flow::Barrier => {
                wave.pc += 1;
                wave.state = State::AtBarrier;
                return Ok(());
            }
            Flow::Yield => {
                wave.pc += 1;
                return Ok(());
            }
            Flow::End => {
                wave.state = State::Ended;
                return Ok(());
            }
        }
    }
}
