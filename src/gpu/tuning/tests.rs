use super::*;
use crate::compile::plan::{EXACT_TARGETS, GENERIC_TARGETS};
use crate::config::{GpuOptions, KvCacheDtype};
use crate::driver::fake::{self, Fake};
use crate::launch::args::{ARGMAX_BLOCKS, Format};
use crate::launch::catalog::{ATTENTION_PREFILL, HEAD_SIZES, MATMUL, MATMUL_ROWS, Subject, Variant};
use crate::{Device, KernelType};

/// The GPUs that the wheel has code for, exact or of their family, with the expected table of each.
const CARDS: [(&str, &[&str]); 6] = [
    ("CDNA2", &["gfx900", "gfx904", "gfx906", "gfx908", "gfx90a"]),
    ("CDNA3", &["gfx940", "gfx941", "gfx942"]),
    ("CDNA4", &["gfx950"]),
    ("RDNA2", &["gfx1010", "gfx1011", "gfx1012", "gfx1030", "gfx1031", "gfx1032", "gfx1034"]),
    ("RDNA3", &["gfx1100", "gfx1101", "gfx1102"]),
    ("RDNA4", &["gfx1200", "gfx1201"]),
];

/// GPUs that are part of a processor.
const INTEGRATED: [&str; 13] = [
    "gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103", "gfx1150", "gfx1151",
    "gfx1152", "gfx1153", "gfx1154",
];

/// Returns the family that is chosen for a device with these properties.
fn family(platform: Platform, arch: &str, integrated: bool) -> &'static str {
    Tuning::of(&DeviceProperties { platform, arch: arch.to_owned(), integrated, ..fake::properties() }).family
}

#[test]
fn every_gpu_has_its_family() {
    for (name, archs) in CARDS {
        for arch in archs {
            assert_eq!(family(Platform::Amd, arch, false), name, "{arch}");
        }
    }
    for arch in INTEGRATED {
        assert_eq!(family(Platform::Amd, arch, true), "APU", "{arch}");
    }
    let listed: Vec<&str> = CARDS.into_iter().flat_map(|(_, archs)| archs).copied().chain(INTEGRATED).collect();
    for arch in GENERIC_TARGETS.into_iter().flat_map(|(_, archs)| archs) {
        assert!(listed.contains(arch), "{arch} is in no list of this test");
    }
    for arch in EXACT_TARGETS {
        assert!(listed.contains(&arch), "{arch} is in no list of this test");
    }
    for (arch, name) in [
        ("sm_80", "Ampere and Ada"),
        ("sm_86", "Ampere and Ada"),
        ("sm_89", "Ampere and Ada"),
        ("sm_90", "Hopper"),
        ("sm_75", "other GPUs of NVIDIA"),
        ("sm_100", "other GPUs of NVIDIA"),
        ("sm_120", "other GPUs of NVIDIA"),
        ("sm", "other GPUs of NVIDIA"),
    ] {
        assert_eq!(family(Platform::Nvidia, arch, false), name, "{arch}");
    }
}

/// Planned blocks have the shape of the launched kernels, and code is compiled for them.
#[test]
fn warpgroups_multiply_where_the_code_is_for_them() {
    for arch in ["sm_75", "sm_80", "sm_89", "sm_90", "sm_91", "sm_100", "sm_120"] {
        let properties = DeviceProperties { platform: Platform::Nvidia, arch: arch.to_owned(), ..fake::properties() };
        assert_eq!(Tuning::of(&properties).matmul.wgmma, properties.has_wgmma(), "{arch}");
        // The threshold for experts' runs was measured with these products.
        assert_eq!(Tuning::of(&properties).experts == hopper::TUNING.experts, properties.has_wgmma(), "{arch}");
        let multiprocessors = 132;
        for rows in MATMUL_ROWS {
            let plan = Tuning::of(&properties).matmul(rows, 4096, 4096, multiprocessors);
            let block = MATMUL.id(Variant::with_rows(KernelType::Q4K, plan.n)).block(&properties);
            // Each tile has a warp there.
            assert!(!properties.has_wgmma() || block.threads == 32 * plan.tiles, "{arch}: {plan:?} {block:?}");
            assert_eq!(block.shared_bytes > 0, properties.has_wgmma(), "{arch}");
        }
        // This many blocks fit in the 228 KiB of a multiprocessor, with one KiB more each, and no further block does.
        for shape in Tuning::of(&properties).matmul.shapes.iter().filter(|_| properties.has_wgmma()) {
            let block = MATMUL.id(Variant::with_rows(KernelType::Q4K, shape.block_rows)).block(&properties);
            let room = |blocks: u32| blocks * (block.shared_bytes + 1024) <= 228 * 1024;
            assert!(room(shape.blocks) && !room(shape.blocks + 1), "{shape:?} {block:?}");
        }
        // A block of prefill fits in the 227 KiB that a block may use, together with its barriers.
        for size in HEAD_SIZES {
            let [f16, int8] = [KvCacheDtype::F16, KvCacheDtype::Int8]
                .map(|dtype| ATTENTION_PREFILL.id(Subject::Head(dtype, size)).block(&properties).shared_bytes);
            assert_eq!((f16 > 0, int8), (properties.has_wgmma() && size <= 256, 0), "{arch} {size}");
            assert!(f16 <= 226 * 1024, "{size}");
        }
    }
    for (platform, tuning) in ALL {
        assert!(!tuning.matmul.wgmma || platform == Platform::Nvidia, "{}", tuning.family);
    }
}

/// The device's own properties decide if the architecture's name does not, and an unknown GPU gets a table.
#[test]
fn an_unknown_gpu_has_a_table_with_a_name() {
    // Parts of a processor: one with a card's compute units, and card architectures that a processor might have.
    assert_eq!(family(Platform::Amd, "gfx942", true), "CDNA3");
    for arch in ["gfx1100", "gfx1200", "gfx1310"] {
        assert_eq!(family(Platform::Amd, arch, true), "APU", "{arch}");
    }
    assert_eq!(family(Platform::Amd, "gfx1151", false), "RDNA3");
    for arch in ["gfx803", "gfx1250", "gfx1310", "cpu-wave32", ""] {
        assert_eq!(family(Platform::Amd, arch, false), "other GPUs of AMD", "{arch}");
    }
    for (properties, told) in [
        (DeviceProperties { platform: Platform::Nvidia, arch: "sm_90".into(), ..fake::properties() }, HOPPER),
        (DeviceProperties { arch: "gfx1310".into(), ..fake::properties() }, OTHER),
    ] {
        let device = Device::with_driver(Box::new(Fake::with_memory(1 << 20, 1 << 20, properties)));
        assert_eq!(device.tuned_as(), told);
        // The mode is chosen at load; the family does not change.
        let invariant = device.tuning(&GpuOptions { batch_invariant: true, ..GpuOptions::default() });
        assert_eq!(invariant, device.tuning(&GpuOptions::default()).batch_invariant());
        assert_eq!(invariant.to_string(), told);
        assert!(invariant.is_batch_invariant() && !device.tuning(&GpuOptions::default()).is_batch_invariant());
    }
}
const HOPPER: &str = "Hopper (measured on an NVIDIA H200)";
const OTHER: &str = "other GPUs of AMD (estimated, not measured)";

/// Every kernel that a table needs was compiled, and the workspace has room for it.
#[test]
fn tables_ask_for_kernels_that_there_are() {
    let mut families: Vec<&str> = ALL.iter().map(|(_, tuning)| tuning.family).collect();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), ALL.len());
    for (platform, tuning) in ALL.into_iter().flat_map(|(on, tuning)| [(on, *tuning), (on, tuning.batch_invariant())]) {
        assert_eq!(tuning.attention.split_kv.is_some(), platform == Platform::Nvidia, "{}", tuning.family);
        let Tuning { family, measured_on: _, gemv, matmul, matmul_f32, experts, attention, states, argmax, library } =
            tuning;
        assert!(states.chunked_from.is_none_or(|tokens| tokens > 0), "{family}");
        assert!(gemv.most_rows <= 1 && gemv.blocks > 0, "{family}");
        assert!(matmul.shapes.is_sorted_by_key(|shape| shape.most_rows), "{family}");
        assert_eq!(matmul.shapes.last().map(|shape| shape.most_rows), Some(u32::MAX), "{family}");
        for shape in matmul.shapes {
            assert!(MATMUL_ROWS.contains(&shape.block_rows) && shape.blocks > 0, "{family}: {shape:?}");
            assert!(shape.least_super_blocks > 0 && shape.split_time >= 0.0, "{family}: {shape:?}");
        }
        let most = MATMUL_ROWS.into_iter().max().unwrap_or(0);
        assert!(matmul.most_pair_rows <= most as usize, "{family}");
        assert!(matmul.most_splits.is_power_of_two() && attention.most_splits.is_power_of_two(), "{family}");
        assert!(attention.most_splits <= 32 && attention.split_tokens > 0, "{family}");
        assert!(attention.prefill_rows > 0, "{family}");
        assert!(gemv.most_rows <= matmul_f32.most_alone as usize, "{family}");
        assert!(matmul_f32.most_alone <= matmul_f32.most_in_fewest, "{family}");
        assert!(matmul_f32.most_in_fewest <= matmul_f32.most_in_few, "{family}");
        assert!(experts.alone_from != Some(0) && experts.most_in_short_runs > 0, "{family}");
        assert!((1..=ARGMAX_BLOCKS).contains(&argmax.most_blocks), "{family}");
        assert_eq!(library.is_none(), tuning.is_batch_invariant(), "{family}");
        let Some(LibraryRows { rows_16_bit, rows_kept, rows_dequantised }) = library else { continue };
        assert!(rows_16_bit <= rows_kept && rows_kept <= rows_dequantised, "{family}");
        assert!(rows_16_bit > gemv.most_rows, "{family}");
    }
}

/// The cases of products that are added to a residual also test deferred partial sums. These shapes are those of
/// `conformance::parts`, and the multiprocessors those of the test devices.
#[test]
fn sums_are_left_on_the_devices_of_tests() {
    for (rows, out_rows, cols) in [(20, 352, 1088), (40, 96, 4096)] {
        for multiprocessors in [4, 132] {
            for (_, tuning) in ALL {
                let plan = tuning.matmul(rows, out_rows, cols, multiprocessors);
                assert!(plan.leaves && plan.grid[2] > 1, "{}: {plan:?}", tuning.family);
            }
        }
    }
}

/// Batch-invariant: each row goes through the same kernel, without splits, for any number of rows.
#[test]
fn no_plan_of_batch_invariant_mode_depends_on_the_rows() {
    for (tuning, multiprocessors) in ALL.into_iter().flat_map(|(_, tuning)| [(tuning, 6), (tuning, 132), (tuning, 304)])
    {
        let invariant = tuning.batch_invariant();
        assert_eq!(invariant, invariant.batch_invariant(), "{}", tuning.family);
        let format = KernelType::Q4K.matmul_format();
        let cols = 14_336;
        let one = invariant.matmul(1, 4096, cols, multiprocessors);
        for rows in 1..=700u32 {
            let product = invariant.matmul(rows, 4096, cols, multiprocessors);
            assert_eq!((product.n, product.grid[0], product.grid[2]), (32, one.grid[0], 1), "{rows} rows");
            assert!(!product.leaves);
            assert_eq!(invariant.activation_format(format, rows as usize, None), Format::F16Tiled);
            assert_eq!(invariant.expert_run(rows as usize, 2, 8), Some(16), "{rows} rows");
            assert_eq!(invariant.matmul_f32(rows, 256), None, "{rows} rows");
            assert!(invariant.argmax_share(rows as usize, 151_936, multiprocessors) >= 151_936, "{rows} rows");
            let blocks = |pairs| invariant.expert_gemv_blocks(4096, pairs, multiprocessors);
            assert_eq!(blocks(rows as usize), blocks(1), "{rows} rows");
            for context in [1, 129, 1000, 1 << 17] {
                let splits = invariant.context_splits(context);
                let plan = invariant.attention_decode(rows, [32, 8, 128], multiprocessors, splits);
                assert_eq!((splits, plan.per_head, plan.splits), (1, false, 1), "{rows} rows of {context}");
            }
            let plan = invariant.split_kv(rows, [32, 8, 128], multiprocessors);
            assert!(plan.is_none_or(|plan| plan.splits == 0 && !plan.in_small_blocks), "{rows} rows");
        }
        assert!(!invariant.attention.rotates && invariant.attention.by_token);
        assert_eq!((invariant.matmul.most_pair_rows, invariant.library), (0, None));
    }
}

/// Tests the plans of a Hopper with 132 multiprocessors.
#[test]
fn hopper_is_as_it_was_measured() {
    let tuning = &hopper::TUNING;
    let grid = |rows, out_rows, cols| {
        let plan = tuning.matmul(rows, out_rows, cols, 132);
        (plan.n, plan.grid)
    };
    // The shapes are an 8B model's: q, k and v; output; gate and up; down; head.
    let shapes = [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336), (128_256, 4096)];
    let expected = [
        (1, (8, [[96, 1, 5], [64, 1, 8], [448, 1, 1], [64, 1, 8], [2004, 1, 1]])),
        (8, (8, [[96, 1, 5], [64, 1, 8], [448, 1, 1], [64, 1, 8], [2004, 1, 1]])),
        (9, (16, [[96, 1, 5], [64, 1, 8], [448, 1, 1], [64, 1, 8], [2004, 1, 1]])),
        (17, (32, [[48, 1, 5], [32, 1, 8], [224, 1, 1], [32, 1, 8], [1002, 1, 1]])),
        (64, (64, [[48, 1, 2], [32, 1, 4], [224, 1, 1], [32, 1, 4], [1002, 1, 1]])),
        (256, (64, [[48, 4, 2], [32, 4, 1], [224, 4, 1], [32, 4, 1], [1002, 4, 1]])),
    ];
    for (rows, (n, grids)) in expected {
        for ((out_rows, cols), expected) in shapes.into_iter().zip(grids) {
            assert_eq!(grid(rows, out_rows, cols), (n, expected), "{rows} rows, {out_rows} x {cols}");
        }
    }
    let leaves = |rows, out_rows| tuning.matmul(rows, out_rows, 4096, 132).leaves;
    assert_eq!([8, 9, 16, 17, 32, 64].map(|rows| leaves(rows, 4096)), [true; 6]);
    assert!([8, 32, 64].iter().all(|&rows| !leaves(rows, 28_672)));
    // Gate and up are not fused with their activation if the columns are split, or if blocks of 16 tiles take more
    // turns.
    let gated = |rows, out_rows| tuning.gated_matmul(rows, out_rows, 4096, 132).map(|plan| (plan.n, plan.grid));
    assert_eq!(gated(8, 14_336), Some((8, [448, 1, 1])));
    assert_eq!(gated(17, 14_300), Some((32, [224, 1, 1])));
    assert_eq!(gated(64, 14_336), Some((64, [112, 1, 1])));
    assert_eq!([(8, 2048), (64, 8192), (256, 14_336)].map(|(rows, out_rows)| gated(rows, out_rows)), [None; 3]);
    let f32_grid = |rows| tuning.matmul_f32(rows, 256).map(|plan| (plan.n, plan.grid));
    let f32_grids = [None, Some((4, [16, 8, 1])), Some((8, [16, 64, 1])), Some((64, [4, 32, 1]))];
    assert_eq!([1, 31, 512, 2048].map(f32_grid), f32_grids);
    assert_eq!([1, 16, 4096, 128_256].map(|rows| tuning.gemv_blocks(rows, 132)), [1, 1, 132, 132]);
    assert_eq!([1, 8, 64, 500].map(|pairs| tuning.expert_gemv_blocks(768, pairs, 132)), [48, 16, 2, 1]);
    assert_eq!(
        [1, 4, 5, 256, 257].map(|rows| tuning.expert_run(rows, 8, 128)),
        [None, None, Some(16), Some(16), Some(64)]
    );
    assert_eq!([4, 5, 8].map(|rows| tuning.expert_run(rows, 8, 256)), [None, Some(16), Some(16)]);
    assert_eq!([1, 128, 129, 900, 7_900, 1 << 17].map(|tokens| tuning.context_splits(tokens)), [1, 1, 2, 8, 32, 32]);
    let formats = [1, 2, 64, 65].map(|rows| tuning.activation_format(Some(Format::F16Tiled), rows, Some(65)));
    assert_eq!(formats, [Format::F32, Format::F16Tiled, Format::F16Tiled, Format::F16]);
    let library = tuning.library.unwrap();
    assert_eq!((library.least(true, true), library.least(false, true)), (9, 65));
    assert_eq!((library.least(true, false), library.least(false, false)), (176, 176));
    assert_eq!(tuning.attention.prefill_rows, 128);
}
