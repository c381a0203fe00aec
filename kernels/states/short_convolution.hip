// Short convolutions between two gates: each sequence has a state, the last inputs of its convolution.
#include "states.h"

// A thread has a channel. The threads of a sequence's first row also compute the other rows that read kept inputs. Only
// then do they store the new inputs, since the new state may go to the slot of the old one.
KERNEL(CONVOLUTION_THREADS, short_convolution, ShortConvolutionArgs) {
  pdl_launch(); pdl_wait();
  const u32 first = (u32)bid_x(), c = (u32)bid_y() * CONVOLUTION_THREADS + (u32)tid_x();
  if (a.format_out == FORMAT_F32 && c >= a.channels) return;
  const u32 sequence = ld_step(a.states.sequences + first);
  if (sequence == NO_SEQUENCE || c >= a.channels) {    // padding, of rows or within a row
    store_activation(a.out, a.format_out, first, c, a.channels, 0.f);
    return;
  }
  const u32 start = ld_step(a.states.starts + sequence), end = ld_step(a.states.starts + sequence + 1);
  const u32 slot = ld_step(a.states.reads + sequence), window = a.num_taps - 1, offset = first - start;
  const Inputs inputs{a.x, a.states.windows, 3 * a.channels, a.channels, window, 2 * a.channels};
  if (offset != 0 && offset < window) return;
  const u32 last = offset == 0 && window > 1 ? min_(start + window, end) : first + 1;
  for (u32 row = first; row < last; row++) {
    float y = 0.f;
    for (u32 tap = 0; tap < a.num_taps; tap++) {
      const bool is_kept = row - start + tap < window;
      const float* kept = is_kept ? inputs.row_of(row, row - start, slot, tap) : nullptr;
      const float x = kept ? kept[c] : is_kept ? 0.f : inputs.input(row + tap - window, c);
      y = fma_(a.taps[(u64)tap * a.channels + c], x, y);
    }
    const float gate = a.x[(u64)row * 3 * a.channels + a.channels + c];
    store_activation(a.out, a.format_out, row, c, a.channels, gate * y);
  }
  if (offset == 0) inputs.keep(a.states, sequence, start, c, a.channels);
}
