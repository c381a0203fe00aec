//! AMD's CDNA3 (`gfx942`: MI300X, MI300A, MI325X).
//!
//! Nothing was measured on such a GPU. All numbers except those of prefill and of blocks per multiprocessor are
//! Hopper's, as estimates. Occupancy facts from the compiled code are next to them. A multiprocessor is a compute unit:
//! four SIMDs, 64 KB of LDS. An MI300X has 304 of them on eight dies with 4 MB of L2 each.

use super::amd::{Room, estimated};
use super::{Tuning, shapes_of_waves};

const ROOM: Room = Room {
    // By registers and LDS of the compiled code, a compute unit has room for 2, 2, 7 and 3 of these blocks.
    shapes: &shapes_of_waves([2, 2, 4, 3]),
    // Estimated: Hopper's number, since by LDS a compute unit holds three blocks of the kernel per KV head.
    attention: 2,
};

/// An XCD has 4 MB of L2, so shorter contexts may be the limit of `per_head_blocks`: measure this first.
pub(super) const TUNING: Tuning = estimated("CDNA3", ROOM);
