//! Identifiers of requests and of their sequences.

use serde::{Deserialize, Serialize};

use crate::scheduler::SeqId;

/// Unique over the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// Bits of a `SeqId` that hold the sequence's index among the `n` of its request, which `SamplingParams::validate`
/// bounds by 2^16.
const INDEX_BITS: u32 = 16;

/// The scheduler's name for sequence `index` of a request.
pub(super) fn seq_id(request: RequestId, index: usize) -> SeqId {
    SeqId(request.0 << INDEX_BITS | index as u64)
}

/// The request of a sequence, and the sequence's index there.
pub(super) fn request_of(seq: SeqId) -> (RequestId, usize) {
    let index = seq.0 & ((1 << INDEX_BITS) - 1);
    (RequestId(seq.0 >> INDEX_BITS), index as usize)
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
