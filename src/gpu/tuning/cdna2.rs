//! AMD's CDNA2 (`gfx90a`: MI210, MI250), and older GPUs with waves of 64 lanes: CDNA1 (`gfx908`) and Vega (`gfx906`).
//!
//! Nothing was measured on such a GPU. All numbers except those of prefill and of blocks per multiprocessor are
//! Hopper's, as estimates. Known facts about these GPUs are next to them. A multiprocessor is a compute unit (104 on
//! each die of an MI250): four SIMDs, 64 KB of LDS. Matrix units exist since CDNA1.

use super::amd::{Room, estimated};
use super::{States, Tuning, shapes_of_waves};

const ROOM: Room = Room {
    // By registers and LDS of the compiled code, a compute unit has room for 2, 2, 7 and 3 of these blocks.
    shapes: &shapes_of_waves([2, 2, 4, 3]),
    // Estimated: Hopper's number.
    attention: 2,
};

pub(super) const TUNING: Tuning = Tuning {
    // CDNA2's matrix units treat subnormal halves as zero, and many low halves of tiles are subnormal.
    states: States { chunked_from: None },
    ..estimated("CDNA2", ROOM)
};
