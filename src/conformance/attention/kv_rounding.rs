//! The values of a KV cache: heads of K and V with the rounding of each type.

use std::ops::{Add, Mul, Sub};

use half::f16;

use crate::config::KvCacheDtype;

/// Returns a head of K or V with the rounding of the cache. In int8, elements are whole numbers times a scale that
/// makes the largest one 127. In int4, a head of K is rotated before and after its rounding.
pub(super) fn stored(dtype: KvCacheDtype, head: &[f32], is_key: bool) -> Vec<f64> {
    let largest = head.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    let levels = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let of_level = |x: f32| f64::from((x * levels).round_ties_even()) * f64::from(largest / 127.0);
    match dtype {
        KvCacheDtype::F16 => head.iter().map(|&x| f16::from_f32(x).to_f64()).collect(),
        KvCacheDtype::F32 => head.iter().map(|&x| f64::from(x)).collect(),
        KvCacheDtype::Int8 => head.iter().map(|&x| of_level(x)).collect(),
        KvCacheDtype::Int4 if is_key => rotated(&in_int4(&rotated(head))),
        KvCacheDtype::Int4 => in_int4(head),
    }
}

/// Rounds blocks of 32 elements to 16 levels from a minimum on, which is an f16 as is the distance of two levels.
fn in_int4(head: &[f32]) -> Vec<f64> {
    let of_block = |block: &[f32]| {
        let top = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let minimum = block.iter().copied().fold(f32::INFINITY, f32::min);
        let [scale, minimum] = [(top - minimum) / 15.0, minimum].map(|x| f16::from_f32(x).to_f32());
        let per_level = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let of_element = |x: &f32| {
            let level = ((x - minimum) * per_level).round_ties_even().clamp(0.0, 15.0);
            f64::from(minimum) + f64::from(scale) * f64::from(level)
        };
        block.iter().map(of_element).collect::<Vec<_>>()
    };
    head.chunks(32).flat_map(of_block).collect()
}

/// Multiplies parts of a head by a Hadamard matrix: as long as they can be, of lengths that are powers of two.
fn rotated<T: Copy + Add<Output = T> + Sub<Output = T> + Mul<Output = T> + From<f32>>(head: &[T]) -> Vec<T> {
    let size = 1usize << head.len().trailing_zeros();
    let norm = T::from(1.0 / (size as f32).sqrt());
    head.chunks(size).flat_map(butterflies).map(|x| x * norm).collect()
}

fn butterflies<T: Copy + Add<Output = T> + Sub<Output = T>>(x: &[T]) -> Vec<T> {
    if let [one] = x {
        return vec![*one];
    }
    let (first, second) = x.split_at(x.len() / 2);
    let (first, second) = (butterflies(first), butterflies(second));
    let pairs = || first.iter().zip(&second);
    pairs().map(|(&a, &b)| a + b).chain(pairs().map(|(&a, &b)| a - b)).collect()
}
