//! Partial selection in the total order of tokens: logit descending, then id ascending.

use super::CHUNK;

/// Returns a token's key in the order: the larger key is the better token, and no two are equal.
pub(super) fn key(logit: f32, id: u32) -> u64 {
    // Adding zero makes -0.0 and 0.0 equal. Then IEEE order is integer order, once negatives are mirrored.
    let bits = (logit + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

pub(super) fn key_id(key: u64) -> u32 {
    !(key as u32)
}

pub(super) fn key_logit(key: u64) -> f32 {
    let ordered = (key >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}

/// Leaves the keys of the `k` best tokens in `keys`, unordered.
///
/// It takes one pass with a floor. Once `k` candidates are known, only logits above the worst of them count, checked a
/// chunk at a time. The candidates are thinned out whenever their buffer is full.
pub(super) fn top_k(logits: &[f32], k: usize, keys: &mut Vec<u64>) {
    keys.clear();
    if k == 0 {
        return;
    }
    let room = k.saturating_mul(2).saturating_add(16 * CHUNK);
    let mut floor = None;
    for (chunk, start) in logits.chunks(CHUNK).zip((0u32..).step_by(CHUNK)) {
        if let Some(floor) = floor {
            let max = chunk.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
            // A later token with the floor's own logit loses by its id.
            if max <= floor {
                continue;
            }
        }
        let better = (start..).zip(chunk).filter(|&(_, &x)| floor.is_none_or(|floor| x > floor));
        keys.extend(better.map(|(id, &x)| key(x, id)));
        if keys.len() + CHUNK > room {
            floor = thin(keys, k);
        }
    }
    thin(keys, k);
}

/// Keeps the `k` largest keys and returns the logit of the smallest of them; `None` if there were at most `k`.
fn thin(keys: &mut Vec<u64>, k: usize) -> Option<f32> {
    if keys.len() <= k {
        return None;
    }
    let (_, &mut worst, _) = keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    keys.truncate(k);
    Some(key_logit(worst))
}
