//! Layers that carry states.

use crate::backend::gpu::GpuBackend;
use crate::backend::gpu::args::{DELTA_NET_COLUMNS, DELTA_NET_HEADS, DeltaNetArgs, Format};
use crate::backend::gpu::buffer::count;
use crate::backend::gpu::checks::Check;
use crate::backend::gpu::gpu_step::GpuStep;
use crate::backend::gpu::kernel::{DELTA_NET_CONVOLVE, DELTA_NET_GATE, DELTA_NET_WALK_D32, DELTA_NET_WALK_D128, ONCE};
use crate::backend::{DeltaNet, DeltaNetShape, DeltaNetWeights, HeadOrder};
use crate::{Error, Result};

pub(super) fn delta_net(step: &mut GpuStep<'_>, args: DeltaNet<'_, GpuBackend>) -> Result<()> {
    let DeltaNet { x, shape, weights, eps, state, convolved, out } = args;
    let rows = step.tokens;
    step.inputs.check(step.batch, Check::States { spec: state.spec })?;
    let format = step.compute.activation_format(step.compute.common(), rows);
    let DeltaNetWeights { taps, decay, decay_bias, norm } = weights;
    let DeltaNetShape { key_heads, value_heads, key_size, value_size, taps: num_taps, order, gate_run } = shape;
    let states = step.inputs.states()?.ok_or_else(|| Error::internal("a delta net in a step without states"))?;
    let args = DeltaNetArgs {
        x: x.read_f32("the projections", rows, shape.cols())?.ptr(),
        convolved: convolved.write("the convolution's output", rows, shape.channels(), Format::F32)?.ptr(),
        out: out.write("the delta net's output", rows, shape.value_cols(), format)?.ptr(),
        taps: taps.read(num_taps * shape.channels())?.ptr(),
        decay: decay.read(value_heads)?.ptr(),
        decay_bias: decay_bias.read(value_heads)?.ptr(),
        norm: norm.read(value_size)?.ptr(),
        windows: state.windows.ptr(),
        matrices: state.matrices.ptr(),
        sequences: states.sequences.ptr(),
        starts: states.starts.ptr(),
        reads: states.reads.ptr(),
        write_starts: states.write_starts.ptr(),
        writes: states.writes.ptr(),
        key_heads: count(key_heads)?,
        value_heads: count(value_heads)?,
        key_size: count(key_size)?,
        value_size: count(value_size)?,
        num_taps: count(num_taps)?,
        is_tiled: u32::from(order == HeadOrder::Tiled),
        gate_run: count(gate_run)?,
        format_out: format,
        eps,
    };
    if rows == 0 {
        return Ok(());
    }
    let (launcher, rows) = (step.compute.launcher(), count(rows)?);
    // In a recorded step each row is a sequence.
    let sequences = count(step.recorded.unwrap_or(step.batch.num_seqs()))?;
    let (keys, values) = (args.key_heads, args.value_heads);
    let convolve = [rows, (2 * keys + values).div_ceil(DELTA_NET_HEADS), 1];
    let walk = [args.value_size.div_ceil(DELTA_NET_COLUMNS), values, sequences];
    let gate = [rows, values.div_ceil(DELTA_NET_HEADS), 1];
    let walk_kernel = if key_size <= 32 { DELTA_NET_WALK_D32 } else { DELTA_NET_WALK_D128 };
    // SAFETY: see `ops`; the states were checked against the pool.
    unsafe {
        launcher.launch(DELTA_NET_CONVOLVE, ONCE, convolve, &args)?;
        launcher.launch(walk_kernel, ONCE, walk, &args)?;
        launcher.launch(DELTA_NET_GATE, ONCE, gate, &args)
    }
}
