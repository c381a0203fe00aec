//! Shared by the tests: the compiler, a memory with gaps, arguments, random numbers.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use amdsim::{CodeObject, Coherence, Launch, Memory, Order, ScalarCache, Stats, Trap};

/// Targets of all kinds; `AMDSIM_TARGETS=gfx906,gfx11-generic` selects others.
const TARGETS: &str = "gfx90a,gfx942,gfx1030,gfx1100,gfx1201";

/// Returns the targets of a test.
pub(crate) fn targets(has: impl Fn(&str) -> bool) -> Vec<String> {
    let chosen = std::env::var("AMDSIM_TARGETS").unwrap_or_else(|_| TARGETS.to_owned());
    chosen.split(',').filter(|target| has(target)).map(str::to_owned).collect()
}

/// Compiles `tests/kernels/<file>.hip`, once for each target and set of flags.
pub(crate) fn compile(file: &str, target: &str, flags: &[&str]) -> Arc<CodeObject> {
    type Cache = Mutex<HashMap<String, Arc<CodeObject>>>;
    static CACHE: OnceLock<Cache> = OnceLock::new();
    let key = format!("{file} {target} {flags:?}");
    let mut cache = CACHE.get_or_init(Cache::default).lock().unwrap_or_else(|poison| poison.into_inner());
    let object = cache.entry(key).or_insert_with(|| Arc::new(CodeObject::load(&clang(file, target, flags)).unwrap()));
    Arc::clone(object)
}

fn clang(file: &str, target: &str, flags: &[&str]) -> Vec<u8> {
    let compiler = std::env::var("ROCMFORGE_HIP_CLANG").unwrap_or_else(|_| "clang-22".to_owned());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(format!("{file}.hip"));
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("kernel.co");
    let result = Command::new(&compiler)
        .args(["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-O3"])
        .args(["-std=c++17", "-ffp-contract=on", &format!("--offload-arch={target}")])
        .args(["", "rows"].map(|folder| format!("-I{}/../../kernels/{folder}", env!("CARGO_MANIFEST_DIR"))))
        .args(flags)
        .args([source.as_os_str(), "-o".as_ref(), output.as_os_str()])
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error} (Debian: apt-get install clang-22 lld-22 llvm-22)"));
    assert!(result.status.success(), "{file} for {target}: {}", String::from_utf8_lossy(&result.stderr));
    std::fs::read(output).unwrap()
}

/// Allocations far apart, so that an access outside of one is detected.
#[derive(Default)]
pub(crate) struct Arena {
    allocations: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

const FIRST_ADDRESS: u64 = 0x7000_0000_0000;
const GAP: u64 = 1 << 20;

impl Arena {
    pub(crate) fn allocate(&mut self, bytes: Vec<u8>) -> u64 {
        let address = FIRST_ADDRESS + self.next;
        self.next += (bytes.len() as u64 + GAP).next_multiple_of(256);
        self.allocations.insert(address, bytes);
        address
    }

    pub(crate) fn upload<T: Word>(&mut self, values: &[T]) -> u64 {
        self.allocate(values.iter().flat_map(|value| value.to_bytes()).collect())
    }

    pub(crate) fn zeros<T: Word>(&mut self, count: usize) -> u64 {
        self.upload(&vec![T::from_bytes(&[0; 8]); count])
    }

    /// Replaces the content of an allocation.
    pub(crate) fn replace<T: Word>(&mut self, address: u64, values: &[T]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_bytes()).collect();
        self.allocations.get_mut(&address).unwrap().copy_from_slice(&bytes);
    }

    pub(crate) fn download<T: Word>(&self, address: u64) -> Vec<T> {
        self.allocations[&address].chunks_exact(T::SIZE).map(T::from_bytes).collect()
    }
}

impl Memory for Arena {
    fn around(&mut self, address: u64) -> Option<(u64, &mut [u8])> {
        let (start, bytes) = self.allocations.range_mut(..=address).next_back()?;
        (address - start < bytes.len() as u64).then_some((*start, bytes))
    }
}

/// A value in memory.
pub(crate) trait Word: Copy {
    const SIZE: usize;
    fn to_bytes(self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! word {
    ($($type:ty),*) => {$(
        impl Word for $type {
            const SIZE: usize = size_of::<$type>();
            fn to_bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes[..Self::SIZE].try_into().unwrap())
            }
        }
    )*};
}

word!(u8, u16, u32, i32, u64, f32);

/// Arguments in the kernel's order, each aligned to its size.
#[derive(Default)]
pub(crate) struct Args(Vec<u8>);

impl Args {
    pub(crate) fn with<T: Word>(mut self, value: T) -> Self {
        self.0.resize(self.0.len().next_multiple_of(T::SIZE), 0);
        self.0.extend(value.to_bytes());
        self
    }
}

pub(crate) struct Case<'a> {
    pub object: &'a CodeObject,
    pub kernel: &'a str,
    pub grid: [u32; 3],
    pub block: u32,
    pub args: Args,
    pub order: Order,
}

impl Case<'_> {
    pub(crate) fn run(self, memory: &mut Arena) -> Result<Stats, Trap> {
        self.run_as(Coherence::Full, memory)
    }

    pub(crate) fn run_as(self, coherence: Coherence, memory: &mut Arena) -> Result<Stats, Trap> {
        self.run_after(coherence, memory, &mut ScalarCache::default())
    }

    /// Runs the launch with the scalar cache that the previous launch left.
    pub(crate) fn run_after(
        self,
        coherence: Coherence,
        memory: &mut Arena,
        scalar: &mut ScalarCache,
    ) -> Result<Stats, Trap> {
        let kernel = self.object.kernel(self.kernel).unwrap_or_else(|| panic!("no kernel {}", self.kernel));
        let Case { grid, order, .. } = self;
        let block = [self.block, 1, 1];
        let launch = Launch { kernel, grid, block, dynamic_lds: 0, kernarg: &self.args.0, order, coherence };
        amdsim::run_after(self.object, &launch, memory, scalar)
    }
}

/// Runs a test on every target, in both orders of execution.
pub(crate) fn everywhere(file: &str, test: impl Fn(&CodeObject, Order)) {
    on(&targets(|_| true), file, test);
}

/// Runs a test on some targets, in both orders of execution.
pub(crate) fn on(targets: &[String], file: &str, test: impl Fn(&CodeObject, Order)) {
    for target in targets {
        let object = compile(file, target, &[]);
        for order in [Order::Up, Order::Down] {
            test(&object, order);
        }
    }
}

/// A seeded generator (SplitMix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in [-1, 1).
    pub(crate) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }

    pub(crate) fn words(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.bits() as u32).collect()
    }
}

pub(crate) fn to_halves(values: &[f32]) -> Vec<u16> {
    values.iter().map(|value| half::f16::from_f32(*value).to_bits()).collect()
}

/// Returns the largest difference, relative to the largest reference value.
pub(crate) fn relative_error(results: &[f32], reference: &[f64]) -> f64 {
    assert_eq!(results.len(), reference.len());
    let largest = reference.iter().fold(1e-30f64, |largest, value| largest.max(value.abs()));
    let error = |(result, value): (&f32, &f64)| {
        let error = (f64::from(*result) - value).abs() / largest;
        if error.is_nan() { f64::INFINITY } else { error }
    };
    results.iter().zip(reference).map(error).fold(0.0, f64::max)
}
