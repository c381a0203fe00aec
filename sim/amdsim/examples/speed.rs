//! Measures wave instructions per second of processor time, on a code object of `tests/kernels/gemm.hip` or `gemv.hip`:
//! `cargo run -p amdsim --example speed -- gemm.co`
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::Instant;

use amdsim::{CodeObject, Coherence, Launch, Memory, Order};

/// A memory with one allocation of zeros at address 0; all pointers of the kernels are 0.
struct Zeros(Vec<u8>);

impl Memory for Zeros {
    fn around(&mut self, _address: u64) -> Option<(u64, &mut [u8])> {
        Some((0, &mut self.0))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        let started = Instant::now();
        let object = CodeObject::load(&std::fs::read(&path)?)?;
        println!("{path} ({}): loaded in {:.0} ms", object.target(), started.elapsed().as_secs_f64() * 1e3);
        for kernel in object.kernels() {
            // Three pointers, then sizes of 512 each; rows and columns, or M, N and K.
            let kernarg: Vec<u8> = [0u64; 3].iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
            let kernarg: Vec<u8> =
                kernarg.into_iter().chain([512u32; 3].iter().flat_map(|n| n.to_le_bytes())).collect();
            let block = [kernel.max_workgroup_size, 1, 1];
            let (grid, order, coherence) = ([8, 8, 1], Order::Up, Coherence::Full);
            let launch = Launch { kernel, grid, block, dynamic_lds: 0, kernarg: &kernarg, order, coherence };
            let started = Instant::now();
            let stats = amdsim::run(&object, &launch, &mut Zeros(vec![0; 1 << 22]))?;
            let (count, seconds) = (stats.wave_instructions as f64, started.elapsed().as_secs_f64());
            println!("  {}: {count} wave-instructions, {:.1} million a second", kernel.name, count / seconds / 1e6);
        }
    }
    Ok(())
}
