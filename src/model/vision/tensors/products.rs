//! The matrices of a layer, with the ranges that their inputs and outputs are kept within in some encoders.

use std::ops::Range;

use super::{Take, VisionTensors, quarters, values};
use crate::Result;
use crate::backend::LinearPart;
use crate::tensor::TensorView;
use crate::vision::family::Family;

const RANGE_ENDS: [&str; 2] = ["min", "max"];

/// Stacked matrices of the same rows. In some encoders, the inputs and outputs of each are kept within ranges.
pub(in crate::vision) struct Product<M> {
    /// Usually one. If parts have inputs of different ranges, there is one for each range, and the product is their
    /// sum: in place of the parts of other ranges, they have zeros.
    pub(in crate::vision) matrices: Vec<M>,
    /// The range of the inputs of each matrix; none if they have any values.
    pub(in crate::vision) inputs: Vec<[f32; 2]>,
    /// Columns of the output, and their ranges.
    pub(in crate::vision) outputs: Vec<(Range<usize>, [f32; 2])>,
}

impl VisionTensors<'_> {
    /// Takes stacked matrices of `rows` rows each, with the ranges of their inputs and outputs.
    pub(super) fn product<'s, T: Take<'s>>(
        &'s self,
        names: &[String],
        [rows, cols]: [usize; 2],
        take: &mut T,
    ) -> Result<Product<T::Matrix>> {
        let parts = names.iter().map(|name| self.linear(name, rows, cols)).collect::<Result<Vec<_>>>()?;
        let parts = parts.into_iter().zip(names).map(|(part, name)| self.in_halves(name, part));
        let parts: Vec<Vec<LinearPart<'s>>> = parts.collect();
        if !self.spec.clips {
            let matrices = vec![take.matrix(parts.concat())?];
            return Ok(Product { matrices, inputs: Vec::new(), outputs: Vec::new() });
        }
        let range = |name: &String, side: &str| -> Result<[f32; 2]> {
            let [least, most] = RANGE_ENDS.map(|end| self.number(&format!("{name}.{side}_{end}")));
            let (least, most) = (least?, most?);
            match least <= most {
                true => Ok([least, most]),
                false => Err(self.finder.error(&format!("{name}.{side}_min"), format!("is {least}, above {most}"))),
            }
        };
        let ranges = names.iter().map(|name| range(name, "input")).collect::<Result<Vec<_>>>()?;
        let mut inputs: Vec<[f32; 2]> = Vec::new();
        for &range in &ranges {
            if !inputs.contains(&range) {
                inputs.push(range);
            }
        }
        let zeros = |part: &LinearPart<'s>| -> Result<LinearPart<'s>> {
            let data = self.zeros.get(..part.weight.data.len());
            let data = data.ok_or_else(|| self.finder.error(part.weight.name, "has more bytes than F32 takes"))?;
            Ok(LinearPart { weight: TensorView { data, ..part.weight }, bias: None })
        };
        let of_input = |input: &[f32; 2]| {
            let of_range = |(part, range): (&Vec<LinearPart<'s>>, &[f32; 2])| match range == input {
                true => Ok(part.clone()),
                false => part.iter().map(zeros).collect::<Result<Vec<_>>>(),
            };
            take.matrix(parts.iter().zip(&ranges).map(of_range).collect::<Result<Vec<_>>>()?.concat())
        };
        let matrices = inputs.iter().map(of_input).collect::<Result<_>>()?;
        let columns = |part: usize| part * rows..(part + 1) * rows;
        let output = |(part, name)| -> Result<_> { Ok((columns(part), range(name, "output")?)) };
        let outputs = names.iter().enumerate().map(output).collect::<Result<_>>()?;
        Ok(Product { matrices, inputs, outputs })
    }

    /// Returns a matrix whose outputs RoPE takes in halves of a head. In Gemma 4, files have the halves of each half.
    fn in_halves<'s>(&'s self, name: &str, part: LinearPart<'s>) -> Vec<LinearPart<'s>> {
        let is_rotated = name.ends_with("attn_q") || name.ends_with("attn_k");
        if self.spec.family != Family::Gemma4 || !is_rotated {
            return vec![part];
        }
        let row_bytes = part.weight.data.len() / part.weight.rows;
        let rows = |head: &'s [u8], rows: Range<usize>| {
            let data = &head[rows.start * row_bytes..rows.end * row_bytes];
            LinearPart { weight: TensorView { rows: rows.len(), data, ..part.weight }, bias: None }
        };
        let heads = part.weight.data.chunks_exact(self.spec.head_dim() * row_bytes);
        heads.flat_map(|head| quarters(self.spec.head_dim()).map(|quarter| rows(head, quarter))).collect()
    }

    /// True if the tensor is an end of a range that a matrix's inputs or outputs are kept within.
    pub(super) fn is_range(&self, name: &str) -> bool {
        let is_end = |side: &str| RANGE_ENDS.iter().any(|end| name.ends_with(&format!(".{side}_{end}")));
        self.spec.clips && name.starts_with("v.blk.") && ["input", "output"].into_iter().any(is_end)
    }

    fn number(&self, name: &str) -> Result<f32> {
        let value = values(self.finder.required(name, &[1])?.view)?[0];
        match value.is_nan() {
            true => Err(self.finder.error(name, "is NaN, expected a number")),
            false => Ok(value),
        }
    }
}
