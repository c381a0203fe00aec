//! AMD's RDNA2 (`gfx1030` to `gfx1032`, `gfx1034`: RX 6000), and RDNA1.
//!
//! Nothing was measured on such a GPU. All numbers except those of prefill and of blocks per multiprocessor are
//! Hopper's, estimated to serve here too. A multiprocessor is a workgroup processor, as the driver counts (40 in an RX
//! 6900 XT). It has two compute units with four SIMDs and 128 KB of LDS. There are no matrix units: products of many
//! rows use dot products.

use super::amd::{Room, estimated};
use super::{States, Tuning, shapes_of_waves};

const ROOM: Room = Room {
    // By registers and LDS of the compiled code, a workgroup processor has room for 4, 4, 7 and 4 of these blocks.
    shapes: &shapes_of_waves([4, 4, 6, 3]),
    // Estimated: Hopper's two blocks would be one wave per SIMD. By registers and LDS, five of decode and four of
    // prefill fit, for heads of 128.
    attention: 4,
};

pub(super) const TUNING: Tuning = Tuning {
    // There are no matrix units.
    states: States { chunked_from: None },
    ..estimated("RDNA2", ROOM)
};
