//! The batch sizes for which decode steps are captured. A step runs as the next larger size.

const BUCKETS: [usize; 14] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// Returns the captured size that serves `rows`. `most`, the largest step, is a size, too. `None` if there are too many
/// rows for a captured graph to matter.
pub(super) fn bucket(rows: usize, most: usize) -> Option<usize> {
    if rows > most {
        return None;
    }
    BUCKETS.into_iter().find(|&size| rows <= size).map(|size| size.min(most))
}

/// Returns all sizes for steps of up to `most` rows.
pub(super) fn buckets(most: usize) -> impl Iterator<Item = usize> {
    let below = BUCKETS.into_iter().filter(move |&size| size < most);
    below.chain(bucket(most, most).filter(|_| most > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_batches() {
        for most in [1, 3, 64, 100, 256, 300] {
            for rows in 1..=most {
                match bucket(rows, most) {
                    Some(size) => assert!((rows..=most).contains(&size)),
                    None => assert!(rows > 256),
                }
            }
            assert_eq!(bucket(most + 1, most), None);
            let mut sizes: Vec<_> = (1..=most).filter_map(|rows| bucket(rows, most)).collect();
            sizes.dedup();
            assert_eq!(buckets(most).collect::<Vec<_>>(), sizes);
        }
    }
}
