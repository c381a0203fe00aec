//! Tests the vendor's matrix library with the shapes of common models, in one process per matrix. `doctor --test` uses
//! it: a shape that fails must not hide the results of the others.

use std::path::PathBuf;

use super::blas::VendorBlas;
use super::{products, trial, wanted};
use crate::Device;
use crate::backend::LinearPart;
use crate::config::GpuOptions;
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::{Error, Result};

/// A name, the outputs of each matrix of a stack, the inputs, and the type of the weights.
type Shape = (&'static str, &'static [usize], usize, GgmlType);
/// Shapes of Llama 3.2 1B and Llama 3.1 8B, and one of a model in BF16.
const SHAPES: [Shape; 8] = [
    ("q, k, v of 1B", &[2048, 512, 512], 2048, GgmlType::Q4_K),
    ("gate, up of 1B", &[8192, 8192], 2048, GgmlType::Q4_K),
    ("down of 1B", &[2048], 8192, GgmlType::Q4_K),
    ("q, k, v of 8B", &[4096, 1024, 1024], 4096, GgmlType::Q4_K),
    ("attention output of 8B", &[4096], 4096, GgmlType::Q4_K),
    ("gate, up of 8B", &[14_336, 14_336], 4096, GgmlType::Q4_K),
    ("down of 8B", &[4096], 14_336, GgmlType::Q4_K),
    ("attention output of 8B, BF16", &[4096], 4096, GgmlType::BF16),
];
/// Small shapes, for a quick test.
const QUICK_SHAPES: [Shape; 2] =
    [("small", &[96, 32], 256, GgmlType::Q4_K), ("small, BF16", &[64], 300, GgmlType::BF16)];
/// Rows of a step.
const TOKENS: usize = 512;

/// The products of one stack of matrices.
pub struct Tried {
    pub name: &'static str,
    pub products: usize,
    /// The problem with them, if any.
    pub problem: Option<String>,
}

/// The library's file, and its results for the shapes.
pub struct LibrarySurvey {
    pub file: PathBuf,
    pub tried: Vec<Tried>,
}

/// Tests the library that is used on this device, or says why none is used. `watch` is called for each shape, and
/// returns false to stop.
///
/// # Errors
/// `Interrupted`.
pub fn survey(
    device: &Device,
    options: &GpuOptions,
    is_quick: bool,
    watch: &mut dyn FnMut(&str) -> bool,
) -> Result<std::result::Result<LibrarySurvey, String>> {
    let rows_served = match wanted(options, device.properties(), &device.tuning(options)) {
        Ok(rows_served) => rows_served,
        Err(reason) => return Ok(Err(reason)),
    };
    let library = match VendorBlas::locate(device, options) {
        Ok(library) => library,
        Err(problem) => return Ok(Err(problem)),
    };
    let mut tried = Vec::new();
    for &(name, rows, cols, ggml_type) in if is_quick { &QUICK_SHAPES[..] } else { &SHAPES } {
        if !watch(name) {
            return Err(Error::Interrupted);
        }
        let part = |&rows: &usize| LinearPart {
            weight: TensorView { name: "weights", ggml_type, rows, cols, data: &[], scales: &[] },
            bias: None,
        };
        let parts: Vec<_> = rows.iter().map(part).collect();
        let products = products([&parts[..]].into_iter(), TOKENS, &rows_served, options.compute_dtype)?;
        let problem = trial::verdict(device.properties(), &library, &products, options).err();
        tried.push(Tried { name, products: products.len(), problem });
    }
    let file = library.canonicalize().unwrap_or(library);
    Ok(Ok(LibrarySurvey { file, tried }))
}
