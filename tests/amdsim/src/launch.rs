//! A launch: workgroups one after the other, waves of a workgroup from barrier to barrier.

use crate::abi::{Start, kernarg_segment};
use crate::context::Context;
use crate::decode::Flow;
use crate::wave::{State, Wave};
use crate::{CodeObject, Fault, Kernel, Memory, Trap};

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    pub kernel: &'a Kernel,
    /// Number of workgroups.
    pub grid: [u32; 3],
    /// Work-items of a workgroup.
    pub block: [u32; 3],
    /// Bytes of LDS beyond the kernel's static ones.
    pub dynamic_lds: u32,
    /// The explicit arguments, laid out as [`Kernel::args`] says; hidden ones are filled in by the simulator.
    pub kernarg: &'a [u8],
    pub order: Order,
}

/// The order in which workgroups, and waves between two barriers, are executed. A kernel whose result differs between
/// the two lacks a barrier or depends on the order of workgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Up,
    Down,
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions executed, each counted once for a wave.
    pub wave_instructions: u64,
}

/// A wave of a test that runs longer than this, minutes of real time, will never end.
const MAX_INSTRUCTIONS: u64 = 1 << 30;

/// Executes a launch to its end.
pub fn run(object: &CodeObject, launch: &Launch<'_>, memory: &mut dyn Memory) -> Result<Stats, Trap> {
    let refuse = |fault| Trap {
        kernel: launch.kernel.name.clone(),
        address: launch.kernel.descriptor.entry,
        instruction: String::new(),
        workgroup: [0; 3],
        wave: 0,
        fault,
    };
    let kernarg = kernarg_segment(launch).map_err(refuse)?;
    let start = Start::new(object, launch).map_err(refuse)?;
    let lds = launch.kernel.group_segment_size as usize + launch.dynamic_lds as usize;
    let mut context = Context { memory, image: object.image(), kernarg: &kernarg, lds: vec![0; lds], clock: 0 };
    let mut waves: Vec<Wave> = (0..start.waves).map(|_| Wave::new(object.target_details().lanes)).collect();
    let [x, y, z] = launch.grid.map(u64::from);
    let count = x * y * z;
    for index in 0..count {
        let index = if launch.order == Order::Up { index } else { count - 1 - index };
        let workgroup = [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32];
        context.lds.fill(0xcd);
        for (number, wave) in waves.iter_mut().enumerate() {
            start.begin(wave, number, workgroup);
        }
        run_workgroup(object, &mut waves, launch.order, &mut context).map_err(|stop| {
            let line = object.line(stop.pc);
            Trap {
                address: line.map_or(0, |line| line.address),
                instruction: line.map(|line| line.text.clone()).unwrap_or_default(),
                workgroup,
                wave: stop.wave,
                ..refuse(*stop.fault)
            }
        })?;
    }
    Ok(Stats { wave_instructions: context.clock })
}

struct Stop {
    wave: usize,
    pc: usize,
    fault: Box<Fault>,
}

/// Runs each wave until it reaches a barrier, sleeps or ends, until all have ended. A barrier is passed when every wave
/// that has not ended is there.
fn run_workgroup(object: &CodeObject, waves: &mut [Wave], order: Order, context: &mut Context<'_>) -> Result<(), Stop> {
    loop {
        for turn in 0..waves.len() {
            let number = if order == Order::Up { turn } else { waves.len() - 1 - turn };
            let wave = &mut waves[number];
            if wave.state == State::Running {
                let result = run_wave(object, wave, context);
                result.map_err(|fault| Stop { wave: number, pc: wave.pc, fault })?;
            }
        }
        if waves.iter().all(|wave| wave.state == State::Ended) {
            return Ok(());
        }
        if waves.iter().all(|wave| wave.state != State::Running) {
            let waiting = waves.iter_mut().filter(|wave| wave.state == State::AtBarrier);
            waiting.for_each(|wave| wave.state = State::Running);
        }
    }
}

fn run_wave(object: &CodeObject, wave: &mut Wave, context: &mut Context<'_>) -> Result<(), Box<Fault>> {
    let started = context.clock;
    let result = run_until_pause(object, wave, context);
    wave.executed += context.clock - started;
    result
}

fn run_until_pause(object: &CodeObject, wave: &mut Wave, context: &mut Context<'_>) -> Result<(), Box<Fault>> {
    let limit = context.clock + MAX_INSTRUCTIONS.saturating_sub(wave.executed);
    loop {
        let step = match object.step(wave.pc) {
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
            Flow::Jump(address) => wave.pc = object.index(address).ok_or(Fault::Jump(address))?,
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
