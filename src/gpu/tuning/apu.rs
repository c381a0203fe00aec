//! GPUs that are part of an AMD processor, as their driver reports: `gfx1103`, `gfx1150` to `gfx1153` (Radeon 700M,
//! 800M, 8000S), `gfx1033`, `gfx1035`, `gfx1036` and Vega's. MI300A is not among them: it has CDNA3's compute units and
//! memory.
//!
//! Nothing was measured on such a GPU. All numbers except those of prefill and of blocks per multiprocessor are
//! Hopper's, estimated to serve here too. A multiprocessor is a workgroup processor, as the driver counts: 6 in
//! `gfx1103`, 20 in `gfx1151`. The memory is the machine's, so a decode step is more memory-bound than on any other
//! family. On `gfx1151` about 0.2 MB of loads in flight reach the memory's speed, and there are 0.7.

use super::amd::{Room, estimated};
use super::{Attention, Tuning, shapes_of_waves};

const ROOM: Room = Room {
    // By registers and LDS of the compiled code, 4, 4, 8 and 4 of these blocks fit on the smallest workgroup processor.
    shapes: &shapes_of_waves([4, 4, 6, 3]),
    // Estimated: Hopper's two blocks would be one wave per SIMD. By registers and LDS, six of decode and four of
    // prefill fit, for heads of 128.
    attention: 4,
};

const ESTIMATED: Tuning = estimated("APU", ROOM);

pub(super) const TUNING: Tuning = Tuning {
    attention: Attention {
        // Estimated: by registers, as many fit on every such GPU. With 6 multiprocessors no step of 32 query heads is
        // below it; with 20, steps of one and two sequences are.
        per_head_blocks: 4,
        ..ESTIMATED.attention
    },
    ..ESTIMATED
};
