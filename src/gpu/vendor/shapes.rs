//! The products of a model that the matrix library would compute. It is tested with these.

use super::blas::{Element, Product};
use crate::KernelType;
use crate::Result;
use crate::backend::LinearPart;
use crate::buffer::TILE_COLS;
use crate::config::ComputeDtype;
use crate::launch::args::Format;
use crate::tuning::LibraryRows;
use crate::weights::dense::{is_fp8, kept_bytes, piece_rows};
use crate::weights::stacks::Layout;

/// Rows of a long prompt's step.
const MANY_ROWS: usize = 512;
/// Maximum outputs of a product that is tested with many rows. Larger products are tested with fewer rows, since many
/// rows of logits are never needed.
const MANY_OUTPUTS: usize = 16 << 20;

/// Returns each shape once at the fewest rows that the library would serve, and once at those of a long prompt.
/// `tokens` are the rows of the largest step. Only the model knows if a product is added to its output, so both cases
/// are tested.
///
/// # Errors
/// The errors of `KernelType::of`.
pub(crate) fn products<'a, 'b: 'a>(
    stacks: impl Iterator<Item = &'a [LinearPart<'b>]>,
    tokens: usize,
    library: &LibraryRows,
    dtype: ComputeDtype,
) -> Result<Vec<Product>> {
    let stacks = stacks.map(|parts| Ok((parts, Layout::of(parts)?))).collect::<Result<Vec<_>>>()?;
    let mut runs = stacks.iter().flat_map(|(_, layout)| &layout.segments);
    let all_16_bit = runs.all(|run| matches!(run.ty, KernelType::F16 | KernelType::Bf16));
    let least = library.least(all_16_bit, true);
    let mut all = Vec::new();
    if tokens < least {
        return Ok(all);
    }
    for (parts, layout) in stacks {
        let Some(cols) = parts.first().map(|part| part.weight.cols.next_multiple_of(TILE_COLS)) else { continue };
        let out_stride = parts.iter().map(|part| part.weight.rows).sum::<usize>();
        let bias = parts.iter().any(|part| part.bias.is_some());
        let many = MANY_ROWS.min(tokens).min(MANY_OUTPUTS / out_stride.max(1)).max(least);
        for run in &layout.segments {
            let Some(format) = run.ty.matmul_format() else { continue };
            let of_16_bits = if format.row_major() == Format::Bf16 { Element::Bf16 } else { Element::F16 };
            let whole = kept_bytes(parts, dtype).is_some().then_some(run.rows);
            let is_fp8 = whole.is_some() && is_fp8(parts, dtype);
            let input = if is_fp8 { Element::Fp8 } else { of_16_bits };
            // Weights that are not kept are multiplied in parts.
            let piece = piece_rows(cols).min(run.rows);
            let pieces = [piece, run.rows % piece].into_iter().filter(|&rows| rows > 0 && !is_fp8);
            for out_rows in pieces.chain(whole) {
                for rows in [least, many] {
                    let product =
                        Product { rows, out_rows, cols, out_stride, input, output: Element::F32, add: false, bias };
                    all.extend([product, Product { add: true, ..product }]);
                    // Gate and up, in the form in which `norm_gated_linear` requests them.
                    if parts.len() == 2 && !bias && layout.segments.len() == 1 && of_16_bits == Element::F16 {
                        all.push(Product { output: Element::F16, ..product });
                    }
                }
            }
        }
    }
    // Products of one matrix are consecutive, so it is made once.
    all.sort_by_key(|p| (p.out_rows, p.cols, p.input, p.out_stride, p.rows, p.add, p.output == Element::F16));
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::GgmlType;
    use crate::tensor::TensorView;
    use crate::tuning::hopper;

    fn part(ggml_type: GgmlType, rows: usize, cols: usize) -> LinearPart<'static> {
        LinearPart { weight: TensorView { name: "weights", ggml_type, rows, cols, data: &[], scales: &[] }, bias: None }
    }

    fn of(stacks: &[Vec<LinearPart<'static>>], tokens: usize) -> Vec<Product> {
        products(stacks.iter().map(Vec::as_slice), tokens, &hopper::TUNING.library.unwrap(), ComputeDtype::Auto)
            .unwrap()
    }

    /// Equal shapes are tested once, gate and up also as f16, and types without 16-bit products not at all.
    #[test]
    fn every_shape_is_tried_once() {
        let q4 = GgmlType::Q4_K;
        let model = [
            vec![part(q4, 64, 256), part(q4, 64, 256)],
            vec![part(q4, 64, 256), part(q4, 64, 256)],
            vec![part(q4, 48, 300)],
            vec![part(GgmlType::F32, 48, 256)],
        ];
        let all = of(&model, 2048);
        // The numbers of rows are 65, the fewest, and 512; products are new and added; gate and up are also f16.
        assert_eq!(all.len(), 2 * 3 + 2 * 2);
        assert!(all.iter().all(|p| [65, 512].contains(&p.rows) && p.input == Element::F16));
        assert_eq!(all.iter().filter(|p| p.output == Element::F16).count(), 2);
        assert!(
            all.iter()
                .all(|p| (p.out_rows, p.cols, p.out_stride) == (128, 256, 128) || (p.out_rows, p.cols) == (48, 512))
        );
        // Steps with this few tokens are too short for the library.
        assert!(of(&model, 64).is_empty());
        assert_eq!(of(&model, 100).iter().map(|p| p.rows).max(), Some(100));
        let bf16 = of(&[vec![part(GgmlType::BF16, 32, 256)]], 16);
        assert_eq!(
            bf16.iter().map(|p| (p.rows, p.input, p.add)).collect::<Vec<_>>(),
            [
                (9, Element::Bf16, false),
                (9, Element::Bf16, true),
                (16, Element::Bf16, false),
                (16, Element::Bf16, true)
            ]
        );
    }

    /// A head with more weights than are dequantised at once is multiplied in parts, each of which is tested.
    #[test]
    fn pieces_of_a_large_matrix_are_tried() {
        let all = of(&[vec![part(GgmlType::Q4_K, 151_936, 5120)]], 512);
        let rows: Vec<usize> = all.iter().map(|p| p.out_rows).collect();
        let piece = piece_rows(5120);
        assert!(rows.contains(&piece) && rows.contains(&(151_936 % piece)) && !rows.contains(&151_936), "{rows:?}");
        assert!(all.iter().all(|p| p.out_stride == 151_936 && [65, 110].contains(&p.rows)));
    }
}
