//! `doctor` reports on kernels what the loaded code contains.

use crate::Error;
use crate::config::{GpuOptions, Platform};
use crate::driver::fake;
use crate::launch::catalog::{NORM_ROWS, ONCE};
use crate::quant::{GgmlType, can_dequantize};
use crate::report::of_type;
use crate::testing::devices::{self, AMD_TARGET, CPU_TARGETS};
use crate::tuning::Tuning;
use crate::{DeviceProperties, KernelRow, KernelType, Kernels, MatrixUnit, Origin, Unit, kernel_rows, matrix_library};

/// Returns the row of a type, or of activations, and an op.
fn row<'a>(rows: &'a [KernelRow], ty: Option<KernelType>, op: &str) -> &'a KernelRow {
    let mut found = rows.iter().filter(|row| row.weights == ty && row.op == op);
    let row = found.next().unwrap_or_else(|| panic!("no row for {ty:?}, {op}"));
    assert!(found.next().is_none(), "{ty:?}, {op}");
    row
}

/// Every type that weights may have has a row for every op. All kernels come from the code objects of the device or its
/// family, which use the target's matrix unit.
pub(super) fn check_kernels(targets: &[(&'static str, MatrixUnit, Option<&'static str>)]) {
    for &(target, matrix_unit, family) in targets {
        let Some((device, options)) = devices::open(target) else { return };
        let mut last = (0, 0);
        let rows = kernel_rows(&device, &options, &mut |done, total| {
            assert!(done > last.0 && done <= total);
            last = (done, total);
            true
        })
        .unwrap();
        assert_eq!(last, (Unit::all().len(), Unit::all().len()));
        let expected = family.map_or(Origin::Embedded { target }, |target| Origin::Generic { target });
        for row in &rows {
            let origin = row.origin.as_ref().unwrap();
            assert_eq!(*origin, expected, "{} {}", row.unit.name(), row.op);
        }
        for &ty in GgmlType::ALL.iter().filter(|&&ty| can_dequantize(ty)) {
            let ty = KernelType::of(ty).unwrap();
            let kernels = ty.name().to_lowercase();
            let many = row(&rows, Some(ty), "product of more rows");
            let expected = match ty {
                KernelType::F32 => (vec!["gemv_f32".to_owned()], None),
                _ => ([8, 16, 32, 64].map(|n| format!("matmul_{kernels}_n{n}")).to_vec(), Some(matrix_unit)),
            };
            assert_eq!((many.kernels.clone(), many.matrix_unit), expected, "{ty:?} on {target}");
            for (op, kernel) in [
                ("products of experts' rows", "matmul_experts"),
                ("gate and up of experts' rows", "matmul_gated_experts"),
            ] {
                let experts = row(&rows, Some(ty), op);
                let expected = match ty {
                    KernelType::F32 => (vec!["gemv_f32".to_owned()], None),
                    _ => ([16, 64].map(|n| format!("{kernel}_{kernels}_n{n}")).to_vec(), Some(matrix_unit)),
                };
                assert_eq!((experts.kernels.clone(), experts.matrix_unit), expected, "{ty:?} on {target}");
            }
            for (op, kernel) in
                [("embedding rows", "embed"), ("product of 1 row", "gemv"), ("dequantise", "dequantize")]
            {
                let row = row(&rows, Some(ty), op);
                assert_eq!(row.kernels, [format!("{kernel}_{kernels}")]);
                assert_eq!((row.matrix_unit, row.unit.ty.unwrap().name().to_lowercase()), (None, kernels.clone()));
            }
        }
        assert_eq!(row(&rows, None, "norm").kernels, ["norm_rows", "norm_rows_other", "norm_rows_of_parts"]);
        for (pair, kernels) in [("Q4_K with Q6_K", "q4_k_q6_k"), ("Q5_K with Q6_K", "q5_k_q6_k")] {
            let one = row(&rows, None, &format!("product of 1 row, {pair}"));
            assert_eq!((one.kernels.clone(), one.matrix_unit), (vec![format!("gemv_{kernels}")], None));
            let few = row(&rows, None, &format!("product of few rows, {pair}"));
            let expected = [8, 16, 32, 64].map(|n| format!("matmul_{kernels}_n{n}")).to_vec();
            assert_eq!((few.kernels.clone(), few.matrix_unit), (expected, Some(matrix_unit)), "{pair} on {target}");
        }
        let prefill = row(&rows, None, "attention, prefill");
        assert_eq!((prefill.kernels.len(), prefill.matrix_unit), (12, Some(matrix_unit)));
        assert_eq!(device.allocated_bytes(), 0);
        assert_eq!(matrix_library(&device, &options), "not used: the driver was given by its path");
    }
}

#[test]
fn every_type_and_op_has_its_kernels() {
    check_kernels(&[(AMD_TARGET, MatrixUnit::Wmma, None)]);
}

/// Gate and up of few rows have one kernel on either platform, in either mode.
#[test]
fn gate_and_up_of_few_rows_have_one_kernel() {
    let hopper = DeviceProperties { platform: Platform::Nvidia, arch: "sm_90".to_owned(), ..fake::properties() };
    for properties in [hopper, fake::properties()] {
        let (tuning, platform) = (Tuning::of(&properties), properties.platform);
        let kernels = |ty, tuning: &Tuning| {
            let mut rows = of_type(ty, tuning, platform).filter(|(_, op, _)| op == "gate and up of few rows");
            rows.next().map(|(_, _, ids)| ids.iter().map(|id| id.name.clone()).collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(kernels(KernelType::Q4K, tuning), [8, 16, 32, 64].map(|n| format!("matmul_gated_q4_k_n{n}")));
        assert_eq!(kernels(KernelType::F32, tuning), ["gemv_f32"]);
        assert_eq!(kernels(KernelType::Q4K, &tuning.batch_invariant()), ["matmul_gated_q4_k_n32"]);
    }
}

/// In batch-invariant mode a single row uses the kernel of all rows.
#[test]
fn batch_invariant_products_have_one_kernel() {
    let Some((device, options)) = devices::open(AMD_TARGET) else { return };
    let options = GpuOptions { batch_invariant: true, library: None, ..options };
    assert_eq!(matrix_library(&device, &options), "not used: results are batch-invariant");
    let rows = kernel_rows(&device, &options, &mut |_, _| true).unwrap();
    for op in ["product of 1 row", "product of more rows"] {
        assert_eq!(row(&rows, Some(KernelType::Q4K), op).kernels, ["matmul_q4_k_n32"]);
        assert_eq!(row(&rows, Some(KernelType::F32), op).kernels, ["gemv_f32"]);
    }
    assert!(!rows.iter().any(|row| row.op.contains("Q4_K with Q6_K")));
}

/// A kernel that does not load is reported in its row with the reason, and the other rows are listed. The caller can
/// stop the listing.
#[test]
fn a_kernel_that_does_not_load_is_told() {
    let Some((device, options)) = devices::open(AMD_TARGET) else { return };
    let options = GpuOptions { without_embedded: true, library: Some("libnone.so".into()), ..options };
    let rows = kernel_rows(&device, &options, &mut |_, _| true).unwrap();
    for row in &rows {
        let problem = row.origin.as_ref().unwrap_err().to_string();
        assert!(problem.contains("gfx1100") && problem.contains("libnone.so"), "{}: {problem}", row.unit.name());
    }
    assert!(matches!(kernel_rows(&device, &options, &mut |_, _| false), Err(Error::Interrupted)));
}

/// Code that was compiled on this machine says if that was now or earlier, and by which compiler.
#[test]
fn compiled_code_says_by_whom() {
    let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
    let cache = tempfile::tempdir().unwrap();
    let options = GpuOptions { cache_dir: Some(cache.path().into()), ..options };
    let kernel = NORM_ROWS.id(ONCE);
    for how in ["compiled now by hipRTC ", "from the disk cache, compiled by hipRTC "] {
        let kernels = Kernels::new(&device, &options).unwrap();
        assert_eq!((kernels.origin(kernel.unit), kernels.matrix_unit(kernel.unit)), (None, None));
        kernels.function(&kernel).unwrap();
        let origin = kernels.origin(kernel.unit).unwrap().to_string();
        assert!(origin.starts_with(how), "{origin}");
        assert_eq!(kernels.matrix_unit(kernel.unit), Some(MatrixUnit::Unknown));
    }
}
