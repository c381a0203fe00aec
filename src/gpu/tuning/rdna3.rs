//! AMD's RDNA3 (`gfx1100` to `gfx1102`: RX 7000, PRO W7000).
//!
//! Nothing was measured on such a GPU. All numbers except those of prefill and of blocks per multiprocessor are
//! Hopper's, as estimates. Occupancy facts from the compiled code are next to them. A multiprocessor is a workgroup
//! processor, as the driver counts (48 in an RX 7900 XTX). It has two compute units with four SIMDs and 128 KB of LDS.

use super::amd::{Room, estimated};
use super::{Tuning, shapes_of_waves};

const ROOM: Room = Room {
    // By registers and LDS of the compiled code, a workgroup processor has room for 5, 5, 12 and 6 of these blocks.
    shapes: &shapes_of_waves([4, 4, 6, 3]),
    // Estimated: Hopper's two blocks would be one wave per SIMD. By registers and LDS, seven of decode and four of
    // prefill fit, for heads of 128.
    attention: 4,
};

/// A card of 24 GB cannot keep an 8B model's weights dequantised. Dequantising them for each chunk of 512 tokens would
/// add about 40 % to its time, also estimated: measure `rows_dequantised`.
pub(super) const TUNING: Tuning = estimated("RDNA3", ROOM);
