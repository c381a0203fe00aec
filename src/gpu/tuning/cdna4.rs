//! AMD's CDNA4 (`gfx950`: MI350X, MI355X).
//!
//! Nothing was measured on such a GPU. All numbers except those of prefill and of blocks per multiprocessor are
//! Hopper's, as estimates for CDNA3's reasons: this GPU runs CDNA3's code. A multiprocessor is a compute unit (256 in
//! an MI355X): four SIMDs, 160 KB of LDS, more than twice CDNA3's.

use super::amd::{Room, estimated};
use super::{Tuning, shapes_of_waves};

const ROOM: Room = Room {
    // By registers and LDS of the compiled code, a compute unit has room for 4, 4, 8 and 4 of these blocks.
    shapes: &shapes_of_waves([4, 4, 6, 4]),
    // Estimated: Hopper's two blocks have half of the loads in flight that the memory needs. By registers and LDS,
    // four of decode and four of prefill fit, for heads of 128.
    attention: 4,
};

pub(super) const TUNING: Tuning = estimated("CDNA4", ROOM);
