//! Identifiers of requests and of their sequences.

use serde::{Deserialize, Serialize};

use crate::scheduler::SeqId;

/// Unique over the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// Bits of a `SeqId` that hold the sequence's index among the `n` of its request, which `SamplingParams::validate`
/// bounds by 2^16.
const INDEX_BITS: u32 = 16;

/// Returns the scheduler's id for sequence `index` of a request.
pub(super) fn seq_id(request: RequestId, index: usize) -> SeqId {
    SeqId(request.0 << INDEX_BITS | index as u64)
}

/// Returns the request of a sequence, and the sequence's index within it.
pub(super) fn request_of(seq: SeqId) -> (RequestId, usize) {
    let index = seq.0 & ((1 << INDEX_BITS) - 1);
    (RequestId(seq.0 >> INDEX_BITS), index as usize)
}

/// Derives the seed of a request without one. Requests differ, and the same engine seed gives the same seeds again.
pub(super) fn request_seed(engine_seed: u64, id: RequestId) -> u64 {
    // The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): neighbouring inputs give unrelated outputs.
    let mut z = engine_seed.wrapping_add(id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_leads_back_to_its_request() {
        for (request, index) in [(1, 0), (1, 65_535), (1 << 40, 7)] {
            assert_eq!(request_of(seq_id(RequestId(request), index)), (RequestId(request), index));
        }
        assert_ne!(seq_id(RequestId(1), 65_535), seq_id(RequestId(2), 0));
    }
}
