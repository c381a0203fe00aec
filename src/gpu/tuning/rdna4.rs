//! AMD's RDNA4 (`gfx1200`, `gfx1201`: RX 9000, AI PRO R9700).
//!
//! Nothing was measured on such a GPU. All numbers except those of prefill and of blocks per multiprocessor are
//! Hopper's, as estimates. Occupancy facts from the compiled code are next to them. A multiprocessor is a workgroup
//! processor, as the driver counts (32 in an RX 9070 XT). It has two compute units with four SIMDs and 128 KB of LDS.

use super::amd::{Room, estimated};
use super::{Tuning, shapes_of_waves};

const ROOM: Room = Room {
    // By registers and LDS of the compiled code, a workgroup processor has room for 5, 5, 12 and 7 of these blocks.
    shapes: &shapes_of_waves([4, 4, 6, 3]),
    // Estimated: Hopper's two blocks would be one wave per SIMD. By registers and LDS, seven of decode and four of
    // prefill fit, for heads of 128.
    attention: 4,
};

pub(super) const TUNING: Tuning = estimated("RDNA4", ROOM);
