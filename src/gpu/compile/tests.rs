//! Tests of the embedded code, and of a run-time compiler's output for the same sources.

use std::collections::BTreeMap;

use rocmforge_quant::codebooks;

use super::embedded::{SOURCES, TARGETS, Target, target_for};
use super::plan::{KernelType, Unit};
use super::*;
use crate::config::{EngineArgs, Platform};
use crate::driver::fake;
use crate::launch::catalog::{self, NORM_ROWS, ONCE, TABLE};
use crate::launch::loaded::Kernels;
use crate::testing::devices::{self, CPU_TARGETS};

/// Returns the kernels of a code object with the block size that each was compiled for. The metadata of its ELF note is
/// a MessagePack map. Its sorted keys put `.max_flat_workgroup_size` right before the kernel's `.name`.
fn kernels_in(image: &[u8]) -> BTreeMap<String, u32> {
    let after = |from: usize, key: &[u8]| {
        let at = image[from..].windows(key.len()).position(|window| window == key);
        at.map(|at| from + at + key.len())
    };
    let (mut kernels, mut from) = (BTreeMap::new(), 0);
    while let Some(at) = after(from, b"\xb8.max_flat_workgroup_size") {
        let threads = match image[at] {
            small @ 0..0x80 => small.into(),
            0xcc => image[at + 1].into(),
            0xcd => u16::from_be_bytes([image[at + 1], image[at + 2]]).into(),
            other => panic!("a block size of MessagePack type {other:#x}"),
        };
        let at = after(at, b"\xa5.name").unwrap();
        let (length, at) = match image[at] {
            short @ 0xa0..0xc0 => (usize::from(short - 0xa0), at + 1),
            0xd9 => (image[at + 1].into(), at + 2),
            other => panic!("a name of MessagePack type {other:#x}"),
        };
        kernels.insert(String::from_utf8(image[at..at + length].to_vec()).unwrap(), threads);
        from = at;
    }
    kernels
}

/// G17, G18: every embedded code object has exactly the kernels that the host uses, with the same block sizes.
#[test]
fn embedded_kernels_are_those_that_are_asked_for() {
    let mut wanted: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new();
    for kernel in catalog::all(Platform::Amd) {
        wanted.entry(kernel.unit.name()).or_default().insert(kernel.name, kernel.threads);
    }
    for target in TARGETS {
        let unpacked = target.unpack().unwrap();
        for unit in Unit::all().into_iter().filter(|unit| target.has(*unit)) {
            let found = kernels_in(unpacked.object(unit).unwrap());
            assert_eq!(found, wanted[&unit.name()], "{} for {}", unit.name(), target.name);
        }
    }
}

/// Engines of a process share unpacked code; another target with the same name has other code.
#[test]
fn code_objects_are_unpacked_once() {
    let [one, other] = [b"one", b"two"].map(|code| Target::of("gfx11-generic", &[("rows", code)]));
    let (first, second, third) = (one.unpack().unwrap(), one.unpack().unwrap(), other.unpack().unwrap());
    assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &third));
    let last = Arc::downgrade(&first);
    drop((first, second));
    assert!(last.upgrade().is_none(), "kept for nobody");
}

/// The plan has a unit for every file of kernels, and no unit without kernels.
#[test]
fn the_plan_has_every_file() {
    let units = Unit::all();
    for (name, _) in SOURCES.iter().filter(|(name, _)| name.ends_with(".hip")) {
        assert!(units.iter().any(|unit| unit.file == *name), "{name} is not in compile/table.rs");
    }
    for platform in [Platform::Amd, Platform::Nvidia] {
        let of_kernels: Vec<Unit> = catalog::all(platform).map(|kernel| kernel.unit).collect();
        for unit in &units {
            assert!(of_kernels.contains(unit), "{} has no kernel", unit.name());
            assert_eq!(units.iter().filter(|other| *other == unit).count(), 1, "{}", unit.name());
        }
        assert!(of_kernels.iter().all(|unit| units.contains(unit)));
    }
}

/// Name, block size and argument struct of a kernel.
type Signature = (String, u32, String);

/// Returns the kernels of a unit as the C++ preprocessor finds them in the sources. `gpu.h` in `directory` marks each
/// of them: `KERNEL_OF(ROPE_STORE_THREADS; rope_store_f16; RopeStoreArgs)`. `None` without a compiler.
fn kernels_in_source(directory: &std::path::Path, unit: Unit) -> Option<Vec<Signature>> {
    let mut preprocess = std::process::Command::new("c++");
    preprocess.args(["-E", "-P", "-x", "c++"]).args(unit.defines()).arg(directory.join(unit.file));
    let output = preprocess.output().ok()?;
    assert!(output.status.success(), "{}: {}", unit.name(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();

    let mut constants: BTreeMap<&str, u32> = BTreeMap::new();
    let value = |constants: &BTreeMap<&str, u32>, text: &str| -> Option<u32> {
        let number = |text: &str| text.parse().ok().or_else(|| constants.get(text).copied());
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            [one] => number(one),
            [a, "*", b] => Some(number(a)? * number(b)?),
            [a, "/", b] => Some(number(a)? / number(b)?),
            _ => None,
        }
    };
    let declared = text.lines().filter_map(|line| line.trim().strip_prefix("constexpr u32 ")?.split_once(';'));
    for (name, is) in declared.flat_map(|(list, _)| list.split(", ")).filter_map(|one| one.split_once(" = ")) {
        // Other constants are no block sizes.
        constants.extend(value(&constants, is).map(|value| (name, value)));
    }
    let marks = text.split("KERNEL_OF(").skip(1).map(|rest| rest.split_once(')').unwrap().0);
    let signatures = marks.map(|mark| match mark.split(';').map(str::trim).collect::<Vec<_>>()[..] {
        [threads, name, args] => {
            let threads = value(&constants, threads).unwrap_or_else(|| panic!("{name} has blocks of {threads}"));
            (name.to_owned(), threads, args.to_owned())
        }
        _ => panic!("{}: {mark}", unit.name()),
    });
    Some(signatures.collect())
}

/// The table and the sources have the same kernels, for each type and pair, with the same block sizes and arguments.
/// Code objects are compared, too, if there are any.
#[test]
fn the_table_and_the_sources_have_the_same_kernels() {
    for (platform, is_nvidia) in [(Platform::Amd, 0), (Platform::Nvidia, 1)] {
        if !has_the_kernels_of_the_sources(platform, is_nvidia) {
            devices::skip("no C++ compiler (c++)");
            return;
        }
    }
}

/// Compares the table with the preprocessed sources for a platform. Returns false without a compiler.
fn has_the_kernels_of_the_sources(platform: Platform, is_nvidia: u32) -> bool {
    let mut expected: BTreeMap<String, Vec<Signature>> = BTreeMap::new();
    for row in TABLE {
        for kernel in row.variants(platform).into_iter().map(|variant| row.id(variant)) {
            let signature = (kernel.name, kernel.threads, row.args.to_owned());
            expected.entry(kernel.unit.name()).or_default().push(signature);
        }
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in SOURCES {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let marks = format!(
        "#pragma once
        #define GPU_NV {is_nvidia}
        #define KERNEL(threads, name, Args) KERNEL_OF(threads; name; Args)
        #define KERNEL_AT_ONCE(threads, blocks, name, Args) KERNEL(threads, name, Args)
        "
    );
    std::fs::write(directory.path().join("gpu.h"), marks).unwrap();
    for unit in Unit::all() {
        let Some(mut found) = kernels_in_source(directory.path(), unit) else { return false };
        let expected = expected.get_mut(&unit.name()).unwrap();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, *expected, "{} on {platform:?}", unit.name());
    }
    true
}

/// A GPU uses its own code, else its family's, else none.
#[test]
fn targets_are_chosen_by_architecture() {
    let name = |arch| target_for(arch).map(|target| target.name);
    let has = |name| TARGETS.iter().any(|target| target.name == name);
    for target in TARGETS {
        assert_eq!(name(target.name), Some(target.name));
    }
    assert_eq!(name("gfx1036"), has("gfx10-3-generic").then_some("gfx10-3-generic"));
    assert_eq!(name("gfx1150"), has("gfx11-generic").then_some("gfx11-generic"));
    for arch in ["gfx803", "gfx1250", "sm_90", ""] {
        assert_eq!(name(arch), None, "{arch}");
    }
}

/// A GPU without code and without a compiler is an error that names the available code and the search.
#[test]
fn no_code_and_no_compiler_is_an_error() {
    let properties = DeviceProperties { arch: "gfx803".into(), ..fake::properties() };
    let options = GpuOptions { library: Some("libnone.so".into()), ..GpuOptions::default() };
    let unit = Unit::plain("rows.hip");
    let error = Compiler::new(&properties, &options).code_object(unit).err().unwrap().to_string();
    assert!(error.contains("gfx803") && error.contains("libnone.so"), "{error}");
}

/// A GPU generation after the newest supported one is refused before any compiler runs.
#[test]
fn a_gpu_of_a_later_generation_is_refused_by_a_sentence() {
    for (arch, expected) in
        [("gfx1310", Some(13)), ("gfx1250", Some(12)), ("gfx90a", Some(9)), ("gfx803", Some(8)), ("cpu-wave32", None)]
    {
        assert_eq!(generation(arch), expected, "{arch}");
    }
    let properties = DeviceProperties { arch: "gfx1310".into(), ..fake::properties() };
    let compiler = Compiler::new(&properties, &GpuOptions::default());
    let error = compiler.code_object(Unit::plain("rows.hip")).err().unwrap().to_string();
    assert!(error.contains("has no kernels for gfx1310: its newest are those of gfx12xx; install a newer"), "{error}");
}

/// hipRTC needs minutes for all units, and may abort for a GPU that neither it nor the kernels know.
#[test]
fn compilation_is_announced() {
    let said = |arch| announcement(arch, "hipRTC 9.0");
    let expected = "hipRTC 9.0 compiles the kernels for gfx1030, which takes minutes at the first load";
    assert_eq!(said("gfx1030").as_deref(), Some(expected));
    for (arch, known) in
        [("gfx942", true), ("gfx1154", true), ("gfx803", false), ("gfx1170", false), ("gfx1251", false)]
    {
        let note = said(arch).unwrap();
        assert_eq!(!note.contains(&format!("does not know {arch}: the result is untested")), known, "{note}");
    }
    assert_eq!((said("sm_90"), said("cpu-wave32")), (None, None));
}

/// If the driver does not load code of a GPU family, it is compiled here. If that fails, the error contains both
/// reasons.
#[test]
fn embedded_code_that_does_not_load_is_compiled() {
    let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
    let unit = Unit::plain("rows.hip");
    // The header of code for AMD, and nothing after it.
    let mut object = b"\x7fELF".to_vec();
    object.resize(64, 0);
    object[18] = 224;
    let embedded = Target::of("gfx11-generic", &[("rows", &object)]);
    let kernels = |options: &GpuOptions| {
        let compiler = Compiler { embedded: Some(embedded), ..Compiler::new(device.properties(), options) };
        Kernels::with_compiler(&device, compiler)
    };
    let compiled = kernels(&options);
    compiled.function(&NORM_ROWS.id(ONCE)).unwrap();
    let origin = compiled.origin(unit).unwrap();
    assert!(matches!(origin, Origin::Compiled { .. } | Origin::Cached { .. }), "{origin}");

    let without = GpuOptions { library: Some("libnone.so".into()), ..options };
    let error = kernels(&without).function(&NORM_ROWS.id(ONCE)).err().unwrap().to_string();
    for part in ["embedded for the family gfx11-generic does not load", "hipModuleLoadData", "libnone.so"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}

/// Engines that start at once, in one process or in several, compile a unit once.
#[test]
fn what_others_compile_is_waited_for() {
    let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = GpuOptions { cache_dir: Some(directory.path().into()), ..options };
    let start = std::sync::Barrier::new(4);
    let origin = || {
        let compiler = Compiler::new(device.properties(), &options);
        start.wait();
        compiler.code_object(Unit::plain("probe.hip")).unwrap().origin
    };
    let origins = std::thread::scope(|scope| {
        let engines: Vec<_> = (0..4).map(|_| scope.spawn(origin)).collect();
        engines.into_iter().map(|engine| engine.join().unwrap()).collect::<Vec<_>>()
    });
    let compiled = origins.iter().filter(|origin| matches!(origin, Origin::Compiled { .. })).count();
    assert_eq!(compiled, 1, "{origins:?}");
    let files = std::fs::read_dir(directory.path().join("kernels")).unwrap().count();
    assert_eq!(files, 1, "locks were left");
}

/// An image that is no complete code object has an unknown matrix unit, and does not panic. The matrix unit of embedded
/// code is tested with `doctor`'s output.
#[test]
fn matrix_unit_of_damaged_code_is_unknown() {
    for image in [&b""[..], b"\x7fELF", &[0xff; 200], b"BC\xc0\xde, which is bitcode"] {
        assert_eq!(MatrixUnit::of(image), MatrixUnit::Unknown);
    }
    let Some(target) = TARGETS.first() else { return };
    let unpacked = target.unpack().unwrap();
    let image = unpacked.object(Unit::plain("rows.hip")).unwrap();
    for length in 0..image.len() {
        assert_eq!(MatrixUnit::of(&image[..length]), MatrixUnit::Unknown, "{length} bytes");
    }
    for at in 0..0x40 {
        // Section tables at any offset must not panic.
        let mut bad = image.to_vec();
        bad[at] ^= 0xff;
        MatrixUnit::of(&bad);
    }
}

/// NVRTC compiles for a GPU that is not in the machine, the result is cached, and a damaged file is compiled again.
#[test]
fn nvrtc_compiles_and_keeps() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = EngineArgs::new("none").with_env().unwrap().gpu;
    options.cache_dir = Some(directory.path().into());
    let properties = DeviceProperties {
        platform: Platform::Nvidia,
        arch: "sm_90".into(),
        driver_version: (13, 0),
        ..fake::properties()
    };
    if let Err(problem) = RuntimeCompiler::open(&properties, &options) {
        println!("SKIPPED nvrtc_compiles_and_keeps: {problem}; set CUDA_HOME");
        return;
    }
    let compiler = Compiler::new(&properties, &options);
    // One type represents all sixteen, which take minutes.
    let there = |unit: &Unit| SOURCES.iter().any(|(name, _)| *name == unit.file);
    let one_type = |unit: &Unit| unit.ty.is_none_or(|ty| ty == KernelType::Q4K);
    for unit in Unit::all().into_iter().filter(|unit| there(unit) && one_type(unit)) {
        let made = compiler.code_object(unit).unwrap();
        assert!(matches!(made.origin, Origin::Compiled { .. }), "{}: {:?}", unit.name(), made.origin);
        assert!(made.image.starts_with(b"\x7fELF"), "{}", unit.name());
        let expected = match unit.file {
            "matmul.hip" | "matmul_gated.hip" | "matmul_experts.hip" | "attention_prefill.hip" => MatrixUnit::Wgmma,
            "matmul_f32.hip" | "attention_decode.hip" => MatrixUnit::MmaSync,
            "attention_latent.hip" | "latent.hip" | "delta_chunks.hip" | "mamba2_chunks.hip" => MatrixUnit::MmaSync,
            _ => MatrixUnit::Unused,
        };
        assert_eq!(MatrixUnit::of(&made.image), expected, "{}", unit.name());
        let kept = compiler.code_object(unit).unwrap();
        assert!(matches!(kept.origin, Origin::Cached { .. }), "{}: {:?}", unit.name(), kept.origin);
        assert_eq!(made.image, kept.image);
    }
    for entry in std::fs::read_dir(directory.path().join("kernels")).unwrap() {
        std::fs::write(entry.unwrap().path(), b"damaged").unwrap();
    }
    let unit = Unit::plain("rows.hip");
    assert!(matches!(compiler.code_object(unit).unwrap().origin, Origin::Compiled { .. }));
    let other = DeviceProperties { arch: "sm_1".into(), ..properties };
    let error = Compiler::new(&other, &options).code_object(unit).err().unwrap().to_string();
    assert!(error.contains("rows") && error.contains("NVRTC"), "{error}");
}

/// The codebooks of the kernels are those of the scalar decoders.
#[test]
fn codebooks_are_those_of_the_decoders() {
    let words = |name: &str| -> Vec<u32> {
        let tables: String = SOURCES.iter().filter(|(file, _)| file.starts_with("quant_grids_")).map(|s| s.1).collect();
        let (_, rest) = tables.split_once(&format!("{name}_GRID[")).unwrap();
        let (list, _) = rest.split_once('{').unwrap().1.split_once('}').unwrap();
        let words = list.split(',').map(str::trim).filter_map(|word| word.strip_prefix("0x"));
        words.map(|word| u32::from_str_radix(word, 16).unwrap()).collect()
    };
    let points = |points: &[i8]| -> Vec<u32> {
        points.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(four.map(|point| point as u8))).collect()
    };
    for (name, codebook) in [
        ("IQ2_XXS", codebooks::IQ2_XXS.as_flattened()),
        ("IQ2_XS", codebooks::IQ2_XS.as_flattened()),
        ("IQ2_S", codebooks::IQ2_S.as_flattened()),
        ("IQ3_XXS", codebooks::IQ3_XXS.as_flattened()),
        ("IQ3_S", codebooks::IQ3_S.as_flattened()),
    ] {
        assert_eq!(words(name), points(codebook), "{name}");
    }
    let fours = points(codebooks::IQ1.map(|entry| entry.map(|point| point + 1)).as_flattened());
    let packed: Vec<u32> = fours.as_chunks().0.iter().map(|[first, second]| first << 3 | second << 5).collect();
    assert_eq!(words("IQ1"), packed);
}
