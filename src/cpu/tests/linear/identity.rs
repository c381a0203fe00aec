//! Bitwise equality between instruction sets and between batch sizes.

use super::*;

/// Every instruction set gives the scalar kernels' bits, at odd sizes.
#[test]
fn instruction_sets_agree_bit_for_bit() {
    let mut random = Random(11);
    for ggml_type in types() {
        for &cols in col_counts(ggml_type) {
            for rows in [1, 15, 16, 17, 33] {
                let raw = matrix(ggml_type, rows, cols);
                let num_rows = 1 + rows % 7;
                let x = random.values(num_rows * cols);
                let parts = [part(view(ggml_type, rows, cols, &raw))];
                let scalar = multiply(Isa::SCALAR, &parts, &x, num_rows);
                for isa in Isa::available() {
                    let out = multiply(isa, &parts, &x, num_rows);
                    assert_eq!(bits(&out), bits(&scalar), "{ggml_type:?} {isa:?} {rows} x {cols}");
                }
            }
        }
    }
}

/// Batch invariance: a row's results have the same bits alone and among 2 to 40 rows.
#[test]
fn rows_do_not_depend_on_the_batch() {
    let (rows, cols) = (33, 256);
    let x = Random(5).values(40 * cols);
    let pool = ThreadPool::new(2).unwrap();
    for ggml_type in types() {
        let raw = matrix(ggml_type, rows, cols);
        for isa in Isa::available() {
            let packed = PackedMatrix::pack(
                isa,
                &[part(view(ggml_type, rows, cols, &raw))],
                &mut WeightMemory::default(),
                &pool,
                &mut |_| Ok(()),
            )
            .unwrap();
            let mut scratch = LinearScratch::new(40, cols).unwrap();
            let mut alone = vec![0.0; 40 * rows];
            for (x, out) in x.chunks(cols).zip(alone.chunks_mut(rows)) {
                packed.multiply(x, 1, out, Store::Assign, &mut scratch, &pool);
            }
            for n in 2..=40 {
                let mut out = vec![f32::NAN; n * rows];
                packed.multiply(&x, n, &mut out, Store::Assign, &mut scratch, &pool);
                assert_eq!(bits(&out), bits(&alone[..n * rows]), "{ggml_type:?} {isa:?} {n} rows");
            }
        }
    }
}

/// Adding to a residual equals the product followed by one addition.
#[test]
fn adding_is_the_sum_of_output_and_product() {
    let (rows, cols, n) = (33, 256, 21);
    let mut random = Random(7);
    let (x, residual) = (random.values(n * cols), random.values(n * rows));
    let pool = ThreadPool::new(2).unwrap();
    for ggml_type in types() {
        let raw = matrix(ggml_type, rows, cols);
        for isa in Isa::available() {
            let parts = [part(view(ggml_type, rows, cols, &raw))];
            let product = multiply(isa, &parts, &x, n);
            let expected: Vec<f32> = residual.iter().zip(&product).map(|(r, y)| r + y).collect();
            let packed = PackedMatrix::pack(isa, &parts, &mut WeightMemory::default(), &pool, &mut |_| Ok(())).unwrap();
            let mut out = residual.clone();
            packed.multiply(&x, n, &mut out, Store::Add, &mut LinearScratch::new(n, cols).unwrap(), &pool);
            assert_eq!(bits(&out), bits(&expected), "{ggml_type:?} {isa:?}");
        }
    }
}

/// Several passes over the weights, and any number of threads, give the bits of one row at a time.
#[test]
fn passes_and_threads_do_not_change_bits() {
    let (rows, n) = (50, 300);
    // IQ and TQ types compute their codes once for several groups of rows. AVX2 does the same for Q6_K and NVFP4.
    let types = [
        GgmlType::Q4_1,
        GgmlType::Q8_0,
        GgmlType::F16,
        GgmlType::Q6_K,
        GgmlType::IQ1_M,
        GgmlType::IQ2_XXS,
        GgmlType::IQ3_S,
        GgmlType::TQ1_0,
        GgmlType::NVFP4,
        GgmlType::Q1_0,
    ];
    for ggml_type in types {
        let cols = if ggml_type.block_elements() > 32 { 512 } else { 96 };
        let x = Random(6).values(n * cols);
        let raw = matrix(ggml_type, rows, cols);
        let parts = [part(view(ggml_type, rows, cols, &raw))];
        let mut expected = Vec::new();
        for x in x.chunks(cols) {
            expected.extend(multiply(Isa::SCALAR, &parts, x, 1));
        }
        for (threads, max_rows) in [(1, 512), (3, 512), (2, 16), (5, 100)] {
            let pool = ThreadPool::new(threads).unwrap();
            let packed =
                PackedMatrix::pack(Isa::detect(), &parts, &mut WeightMemory::default(), &pool, &mut |_| Ok(()))
                    .unwrap();
            let mut scratch = LinearScratch::new(max_rows, cols).unwrap();
            let mut out = vec![f32::NAN; n * rows];
            packed.multiply(&x, n, &mut out, Store::Assign, &mut scratch, &pool);
            assert_eq!(bits(&out), bits(&expected), "{ggml_type:?} {threads} threads, {max_rows} rows");
        }
    }
}
