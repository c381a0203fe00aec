//! Faulty kernels must be detected: missing barriers, accesses out of bounds, unknown instructions.
#![allow(clippy::unwrap_used)]

mod common;

use amdsim::{CodeObject, Fault, LoadError, Order, Space, Trap};
use common::{Arena, Args, Case, Random, compile, targets, to_halves};

/// True if a kernel without its barrier `number` still gives the result of the whole kernel, in both orders.
fn survives(file: &str, target: &str, number: u32, run: impl Fn(&CodeObject, Order) -> Vec<f32>) -> bool {
    let expected = run(&compile(file, target, &[]), Order::Up);
    let object = compile(file, target, &[&format!("-DNO_BARRIER={number}")]);
    [Order::Up, Order::Down].iter().all(|order| run(&object, *order) == expected)
}

#[test]
fn a_missing_barrier_changes_the_result() {
    let rmsnorm = |object: &CodeObject, order| {
        let mut memory = Arena::default();
        let x = Random(1).floats(512);
        let y = memory.zeros::<f32>(512);
        let args = Args::default().with(y).with(memory.upload(&x)).with(memory.upload(&x)).with(512i32).with(1e-5f32);
        Case { object, kernel: "rmsnorm", grid: [1; 3], block: 256, args, order }.run(&mut memory).unwrap();
        memory.download(y)
    };
    let gemm = |object: &CodeObject, order| {
        let mut memory = Arena::default();
        let mut random = Random(2);
        let c = memory.zeros::<f32>(64 * 64);
        let a = memory.upload(&to_halves(&random.floats(64 * 128)));
        let b = memory.upload(&to_halves(&random.floats(64 * 128)));
        let args = Args::default().with(c).with(a).with(b).with(64i32).with(64i32).with(128i32);
        let block = 4 * object.wavefront_size();
        Case { object, kernel: "gemm", grid: [1; 3], block, args, order }.run(&mut memory).unwrap();
        memory.download(c)
    };
    for target in &targets(|_| true) {
        assert!(!survives("rows", target, 1, rmsnorm), "{target}: rmsnorm");
        assert!(!survives("gemm", target, 1, gemm), "{target}: gemm, first barrier");
        assert!(!survives("gemm", target, 2, gemm), "{target}: gemm, second barrier");
    }
}

fn silu_mul(target: &str, memory: &mut Arena, [y, g, u]: [u64; 3], n: i32) -> Result<(), Trap> {
    let object = compile("rows", target, &[]);
    let args = Args::default().with(y).with(g).with(u).with(n);
    let case = Case { object: &object, kernel: "silu_mul", grid: [1; 3], block: 256, args, order: Order::Up };
    case.run(memory).map(|_| ())
}

#[test]
fn an_access_out_of_bounds_is_named() {
    for target in &targets(|_| true) {
        let mut memory = Arena::default();
        let [y, g, u] = [100, 99, 100].map(|count| memory.zeros::<f32>(count));
        let trap = silu_mul(target, &mut memory, [y, g, u], 100).unwrap_err();
        let Fault::OutOfBounds { space: Space::Global, address, bytes: 4, lane, .. } = trap.fault else {
            panic!("{target}: {trap}")
        };
        assert_eq!(address, g + 4 * 99, "{target}: {trap}");
        assert_eq!(trap.wave * compile("rows", target, &[]).wavefront_size() as usize + lane, 99);
        assert!(trap.instruction.starts_with("global_load"), "{trap}");
        let trap = silu_mul(target, &mut memory, [g, y, u], 100).unwrap_err();
        assert!(trap.instruction.starts_with("global_store"), "{target}: {trap}");
    }
}

#[test]
fn lds_ends_where_it_was_declared() {
    for target in &targets(|_| true) {
        let object = compile("faults", target, &[]);
        let run = |index: i32| {
            let mut memory = Arena::default();
            let args = Args::default().with(memory.zeros::<u32>(64)).with(index);
            let block = object.wavefront_size();
            Case { object: &object, kernel: "lds", grid: [1; 3], block, args, order: Order::Up }.run(&mut memory)
        };
        run(0).unwrap();
        let trap = run(1).unwrap_err();
        assert!(matches!(trap.fault, Fault::OutOfBounds { space: Space::Lds, .. }), "{target}: {trap}");
    }
}

#[test]
fn what_was_never_written_is_poison() {
    for target in &targets(|_| true) {
        let object = compile("faults", target, &[]);
        let mut memory = Arena::default();
        let y = memory.zeros::<u32>(64);
        let block = object.wavefront_size();
        let args = Args::default().with(y);
        Case { object: &object, kernel: "unwritten", grid: [1; 3], block, args, order: Order::Up }
            .run(&mut memory)
            .unwrap();
        assert!(memory.download::<u32>(y)[..block as usize].iter().all(|word| *word == 0xcdcd_cdcd), "{target}");
    }
}

#[test]
fn an_unknown_instruction_stops_with_its_text() {
    for target in &targets(|_| true) {
        let object = compile("faults", target, &[]);
        let mut memory = Arena::default();
        let args = Args::default().with(memory.zeros::<u32>(64));
        let block = object.wavefront_size();
        let trap = Case { object: &object, kernel: "unknown", grid: [1; 3], block, args, order: Order::Up }
            .run(&mut memory)
            .unwrap_err();
        assert!(matches!(trap.fault, Fault::Unsupported(_)), "{target}: {trap}");
        assert!(trap.instruction.starts_with("v_sad_u8"), "{target}: {trap}");
        assert!(object.unsupported().unwrap().iter().any(|text| text.starts_with("v_sad_u8")));
    }
}

#[test]
fn a_trap_and_an_oversized_workgroup() {
    let object = compile("faults", "gfx1100", &[]);
    let run = |kernel, block| {
        let mut memory = Arena::default();
        let args = Args::default().with(memory.zeros::<u32>(64));
        Case { object: &object, kernel, grid: [1; 3], block, args, order: Order::Up }.run(&mut memory)
    };
    assert_eq!(run("trapped", 32).unwrap_err().fault, Fault::Trapped);
    assert!(matches!(run("unwritten", 64).unwrap_err().fault, Fault::Launch(_)));
}

#[test]
fn other_files_are_refused() {
    let load = |file: &[u8]| CodeObject::load(file).err();
    assert!(matches!(load(b"not an ELF file"), Some(LoadError::Format(_))));
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(matches!(load(&own), Some(LoadError::Format("the ELF file is for another machine"))));
}
