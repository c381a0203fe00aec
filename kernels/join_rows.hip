// Rows that are made of two, where one of the two may be of the token before: of a sequence's first row in a step it is
// what a state has kept.
#include "states.h"

// A thread takes a column of both halves. The threads of a sequence's first row keep its last ones for the steps that
// follow, once they have read what the state held: it may go to the slot that it comes from.
KERNEL(CONVOLUTION_THREADS, join_rows, JoinRowsArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = (u32)bid_y() * CONVOLUTION_THREADS + (u32)tid_x();
  if (c >= a.cols) return;
  float* out = a.out + (u64)row * 2 * a.cols;
  out[c] = a.left[(u64)row * a.cols + c];
  if (!a.states.windows) {
    out[a.cols + c] = a.right[(u64)row * a.cols + c];
    return;
  }
  const u32 sequence = ld_step(a.states.sequences + row);
  if (sequence == NO_SEQUENCE) {
    out[a.cols + c] = 0.f;
    return;
  }
  const u32 start = ld_step(a.states.starts + sequence), slot = ld_step(a.states.reads + sequence);
  const Inputs inputs{a.right, a.states.windows, a.cols, a.cols, 1, 0};
  const float* before = inputs.row_of(row, row - start, slot, 0);
  out[a.cols + c] = before ? before[c] : 0.f;
  if (row == start) inputs.keep(a.states, sequence, start, c, a.cols);
}
