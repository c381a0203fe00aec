// Joins pairs of rows, where the second may be of the previous token: for a sequence's first row in a step, the state
// holds it.
#include "states.h"

// A thread has a column of a joined row. The threads of a sequence's first row also store its last inputs for later
// steps, after they have read the old state: the new state may go to the slot of the old one.
KERNEL(CONVOLUTION_THREADS, join_rows, JoinRowsArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), at = (u32)bid_y() * CONVOLUTION_THREADS + (u32)tid_x(), joined = 2 * a.cols;
  if (a.format_out == FORMAT_F32 && at >= joined) return;
  float value = 0.f;                                   // of padding
  if (at < a.cols) {
    value = a.left[(u64)row * a.cols + at];
  } else if (at < joined) {
    const u32 c = at - a.cols;
    if (!a.states.windows) {
      value = a.right[(u64)row * a.cols + c];
    } else {
      const u32 sequence = ld_step(a.states.sequences + row);
      if (sequence != NO_SEQUENCE) {
        const u32 start = ld_step(a.states.starts + sequence), slot = ld_step(a.states.reads + sequence);
        const Inputs inputs{a.right, a.states.windows, a.cols, a.cols, 1, 0};
        const float* before = inputs.row_of(row, row - start, slot, 0);
        if (before) value = before[c];
        if (row == start) inputs.keep(a.states, sequence, start, c, a.cols);
      }
    }
  }
  store_activation(a.out, a.format_out, row, at, joined, value);
}
