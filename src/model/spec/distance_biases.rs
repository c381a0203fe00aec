//! Relative positions of T5 (arXiv 1910.10683): each head has learned biases of scores, one for each *bucket* of
//! distances.

/// Distances of this many tokens and more share the last bucket of their direction. The files have no key for it, and
/// every model has this number.
const FAR: usize = 128;

/// The biases of an attention in both directions. Half of the buckets belong to keys after the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistanceBiases {
    /// The layer that has the tensor.
    pub layer: usize,
    pub buckets: usize,
}

impl DistanceBiases {
    /// Name of the tensor.
    pub const TENSOR: &str = "attn_rel_b.weight";
    /// The even numbers in this range are possible numbers of buckets.
    pub const BUCKETS: std::ops::RangeInclusive<usize> = 4..=2 * FAR;

    /// Returns the bucket of the distance from a query to a key. The buckets of a direction begin with one for each
    /// distance; those of the other half are spaced logarithmically.
    fn bucket(self, distance: isize) -> usize {
        let (half, far) = (self.buckets / 2, distance.unsigned_abs());
        let exact = half / 2;
        let of_direction = if far < exact {
            far
        } else {
            let of = |far: usize| (far as f64 / exact as f64).ln();
            // Powers of the base are distances that begin a bucket; rounding may not move them to the one before.
            let step = of(far) / of(FAR) * (half - exact) as f64 + 1e-9;
            (exact + step as usize).min(half - 1)
        };
        if distance > 0 { half + of_direction } else { of_direction }
    }

    /// Returns the biases of all heads in the form of `Attention::biases`, from the file's `[buckets][heads]`.
    pub fn table(self, values: &[f32], heads: usize) -> Vec<f32> {
        let reach = FAR as isize;
        let of_head = |head| (-reach..=reach).map(move |distance| values[self.bucket(distance) * heads + head]);
        (0..heads).flat_map(of_head).collect()
    }

    /// Returns the number of elements of `table`.
    pub fn table_len(heads: usize) -> usize {
        heads * (2 * FAR + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first distance of each bucket in transformers (`T5Attention._relative_position_bucket`).
    #[test]
    fn buckets_begin_where_those_of_transformers_do() {
        let cases: [(usize, &[isize]); 4] = [
            (4, &[0, 1]),
            (8, &[0, 1, 2, 16]),
            (16, &[0, 1, 2, 3, 4, 10, 23, 54]),
            (32, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]),
        ];
        for (buckets, starts) in cases {
            let biases = DistanceBiases { layer: 0, buckets };
            for distance in 0..300 {
                let expected = starts.iter().rposition(|&start| start <= distance).unwrap();
                assert_eq!(biases.bucket(-distance), expected, "-{distance} of {buckets}");
                let after = if distance == 0 { 0 } else { buckets / 2 + expected };
                assert_eq!(biases.bucket(distance), after, "{distance} of {buckets}");
            }
        }
    }
}
