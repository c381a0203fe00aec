//! Layers with recurrent states.

use crate::backend::{
    DeltaNet, DeltaNetShape, DeltaNetWeights, HeadOrder, JoinRows, Mamba, Mamba2, Mamba2Shape, Mamba2Weights,
    MambaConvolution, MambaShape, ShortConvolution, ShortConvolutionShape,
};
use crate::buffer::{StateLayer, count};
use crate::gpu_backend::gpu_step::GpuStep;
use crate::launch::args::{
    CONVOLUTION_THREADS, DELTA_NET_HEADS, DELTA_NET_KEY_SIZE, DELTA_NET_PAIRS_BYTES, DeltaNetArgs, Format,
    JoinRowsArgs, MAMBA2_SCAN_COLUMNS, Mamba2Args, MambaArgs, STATE_COLUMNS, STATE_TILE, ShortConvolutionArgs,
    StatesArgs,
};
use crate::launch::catalog::{
    DELTA_NET_CONVOLVE, DELTA_NET_GATE, DELTA_NET_PAIRS, DELTA_NET_SCAN, DELTA_NET_WALK_D32, DELTA_NET_WALK_D128,
    JOIN_ROWS, MAMBA_CONVOLVE, MAMBA_GATE, MAMBA_WALK_D16, MAMBA_WALK_D32, MAMBA2_CONVOLVE, MAMBA2_GATE, MAMBA2_PAIRS,
    MAMBA2_SCAN_D128, MAMBA2_SCAN_D256, MAMBA2_WALK_D32, MAMBA2_WALK_D128, MAMBA2_WALK_D256, ONCE, SHORT_CONVOLUTION,
};
use crate::step::checks::Check;
use crate::{DevicePtr, GpuBackend};
use crate::{Error, Result};

/// Numbers of matrix rows that kernels are compiled for.
const SMALLEST_MATRIX: usize = 16;
const SMALL_MATRIX: usize = 32;
const LARGE_MATRIX: usize = 128;
const _: () = assert!(MambaShape::MAX_STATE_SIZE == SMALL_MATRIX);

/// The arguments of a layer without states.
const NO_STATES: StatesArgs = StatesArgs {
    windows: DevicePtr::NULL,
    matrices: DevicePtr::NULL,
    sequences: DevicePtr::NULL,
    starts: DevicePtr::NULL,
    reads: DevicePtr::NULL,
    write_starts: DevicePtr::NULL,
    writes: DevicePtr::NULL,
};

/// Returns the states of a layer, checked against the step's.
fn states_of(step: &mut GpuStep<'_>, state: &StateLayer) -> Result<StatesArgs> {
    step.inputs.check(step.batch, Check::States { spec: state.spec })?;
    let states = step.inputs.states()?.ok_or_else(|| Error::internal("a layer of states in a step without them"))?;
    Ok(StatesArgs {
        windows: state.windows.ptr(),
        matrices: state.matrices.ptr(),
        sequences: states.sequences.ptr(),
        starts: states.starts.ptr(),
        reads: states.reads.ptr(),
        write_starts: states.write_starts.ptr(),
        writes: states.writes.ptr(),
    })
}

/// Returns the number of sequences of a step: in a captured one each row is one.
fn num_sequences(step: &GpuStep<'_>) -> Result<u32> {
    count(step.captured.unwrap_or(step.batch.num_seqs()))
}

/// Returns the bytes that the chunk kernels of delta nets store for the token pairs of `rows` rows; `None` if they
/// overflow.
pub(crate) fn pairs_bytes(shape: DeltaNetShape, rows: usize) -> Option<usize> {
    let tiles = rows.div_ceil(STATE_TILE as usize);
    tiles.checked_mul(shape.value_heads)?.checked_mul(DELTA_NET_PAIRS_BYTES as usize)
}

/// Returns the bytes that the chunk kernels of Mamba-2 store for the token pairs of `rows` rows; `None` if they
/// overflow.
pub(crate) fn mamba2_pairs_bytes(shape: Mamba2Shape, rows: usize) -> Option<usize> {
    let tiles = rows.div_ceil(STATE_TILE as usize);
    tiles.checked_mul(shape.groups)?.checked_mul(4 * (STATE_TILE * STATE_TILE) as usize)
}

/// The sequences of a step that are computed by chunks.
struct Chunks {
    /// The fewest tokens of such a sequence; `None` if all sequences go token by token.
    from: Option<u32>,
    num_sequences: usize,
}

/// Returns the chunks of a step whose layer has a shape that `fits` the chunk kernels.
fn chunks(step: &GpuStep<'_>, fits: bool) -> Chunks {
    let from = step.compute.launcher().tuning().states.chunked_from.filter(|_| fits && step.captured.is_none());
    let is_chunked = |seq: usize| from.is_some_and(|least| step.batch.tokens_of(seq).len() >= least as usize);
    Chunks { from, num_sequences: (0..step.batch.num_seqs()).filter(|&seq| is_chunked(seq)).count() }
}

pub(super) fn delta_net(step: &mut GpuStep<'_>, args: DeltaNet<'_, GpuBackend>) -> Result<()> {
    let DeltaNet { x, shape, weights, eps, state, convolved, out } = args;
    let rows = step.tokens;
    let states = states_of(step, state)?;
    let format = step.compute.activation_format(step.compute.common(), rows);
    let DeltaNetWeights { taps, decay, decay_bias, norm } = weights;
    let DeltaNetShape { key_heads, value_heads, key_size, value_size, taps: num_taps, order, gate_run } = shape;
    let fits = key_size == DELTA_NET_KEY_SIZE as usize && value_size.is_multiple_of(STATE_COLUMNS as usize);
    let Chunks { from: chunked_from, num_sequences: num_chunked } = chunks(step, fits);
    let of_convolved = convolved.write("the convolution's output", rows, shape.channels(), Format::F32)?;
    let pairs = match (num_chunked, pairs_bytes(shape, rows)) {
        (0, _) => of_convolved.ptr(),
        (_, Some(bytes)) => of_convolved.part(4 * (rows * shape.channels()) as u64, bytes as u64)?.ptr(),
        (_, None) => return Err(Error::internal(format!("pairs of {rows} tokens of {shape:?}"))),
    };
    let args = DeltaNetArgs {
        states,
        x: x.read_f32("the projections", rows, shape.cols())?.ptr(),
        convolved: of_convolved.ptr(),
        pairs,
        out: out.write("the delta net's output", rows, shape.value_cols(), format)?.ptr(),
        taps: taps.read(num_taps * shape.channels())?.ptr(),
        decay: decay.read(value_heads)?.ptr(),
        decay_bias: decay_bias.read(value_heads)?.ptr(),
        norm: norm.read(value_size)?.ptr(),
        key_heads: count(key_heads)?,
        value_heads: count(value_heads)?,
        key_size: count(key_size)?,
        value_size: count(value_size)?,
        num_taps: count(num_taps)?,
        is_tiled: u32::from(order == HeadOrder::Tiled),
        gate_run: count(gate_run)?,
        rows: count(rows)?,
        chunked_from: chunked_from.unwrap_or(u32::MAX),
        format_out: format,
        eps,
    };
    if rows == 0 {
        return Ok(());
    }
    let (launcher, rows, sequences) = (step.compute.launcher(), count(rows)?, num_sequences(step)?);
    let (keys, values) = (args.key_heads, args.value_heads);
    let convolve = [rows, (2 * keys + values).div_ceil(DELTA_NET_HEADS), 1];
    let walk = [args.value_size.div_ceil(STATE_COLUMNS), values, sequences];
    let gate = [rows, values.div_ceil(DELTA_NET_HEADS), 1];
    let tiles = [rows.div_ceil(STATE_TILE), values, 1];
    let walk_kernel = if key_size <= SMALL_MATRIX { DELTA_NET_WALK_D32 } else { DELTA_NET_WALK_D128 };
    // SAFETY: see `ops`; the states were checked against the pool.
    unsafe {
        launcher.launch(DELTA_NET_CONVOLVE, ONCE, convolve, &args)?;
        if num_chunked < sequences as usize {
            launcher.launch(walk_kernel, ONCE, walk, &args)?;
        }
        if num_chunked > 0 {
            launcher.launch(DELTA_NET_PAIRS, ONCE, tiles, &args)?;
            launcher.launch(DELTA_NET_SCAN, ONCE, walk, &args)?;
        }
        launcher.launch(DELTA_NET_GATE, ONCE, gate, &args)
    }
}

pub(super) fn mamba2(step: &mut GpuStep<'_>, args: Mamba2<'_, GpuBackend>) -> Result<()> {
    let Mamba2 { x, shape, weights, eps, state, convolved, out } = args;
    let rows = step.tokens;
    let states = states_of(step, state)?;
    let format = step.compute.activation_format(step.compute.common(), rows);
    let Mamba2Weights { taps, taps_bias, decay, step_bias, skip, norm } = weights;
    let Mamba2Shape { heads, head_size, groups, state_size, taps: num_taps } = shape;
    let scan_kernel = match state_size {
        128 => Some(MAMBA2_SCAN_D128),
        256 => Some(MAMBA2_SCAN_D256),
        _ => None,
    };
    let scan_kernel = scan_kernel.filter(|_| head_size.is_multiple_of(MAMBA2_SCAN_COLUMNS as usize));
    let Chunks { from: chunked_from, num_sequences: num_chunked } = chunks(step, scan_kernel.is_some());
    let of_convolved = convolved.write("the convolution's output", rows, shape.channels(), Format::F32)?;
    let pairs = match (num_chunked, mamba2_pairs_bytes(shape, rows)) {
        (0, _) => of_convolved.ptr(),
        (_, Some(bytes)) => of_convolved.part(4 * (rows * shape.channels()) as u64, bytes as u64)?.ptr(),
        (_, None) => return Err(Error::internal(format!("pairs of {rows} tokens of {shape:?}"))),
    };
    let args = Mamba2Args {
        states,
        x: x.read_f32("the projections", rows, shape.cols())?.ptr(),
        convolved: of_convolved.ptr(),
        pairs,
        out: out.write("the mixer's output", rows, shape.inner_cols(), format)?.ptr(),
        taps: taps.read(num_taps * shape.channels())?.ptr(),
        taps_bias: taps_bias.map(|bias| bias.read(shape.channels())).transpose()?.into(),
        decay: decay.read(heads)?.ptr(),
        step_bias: step_bias.read(heads)?.ptr(),
        skip: skip.read(heads)?.ptr(),
        norm: norm.map(|norm| norm.read(shape.inner_cols())).transpose()?.into(),
        heads: count(heads)?,
        head_size: count(head_size)?,
        groups: count(groups)?,
        state_size: count(state_size)?,
        num_taps: count(num_taps)?,
        rows: count(rows)?,
        chunked_from: chunked_from.unwrap_or(u32::MAX),
        format_out: format,
        eps,
    };
    if rows == 0 {
        return Ok(());
    }
    let (launcher, rows, sequences) = (step.compute.launcher(), count(rows)?, num_sequences(step)?);
    let convolve = [rows, count(shape.channels())?.div_ceil(CONVOLUTION_THREADS), 1];
    let walk = [args.head_size.div_ceil(STATE_COLUMNS), args.heads, sequences];
    let gate = [rows, args.groups, 1];
    let walk_kernel = if state_size <= SMALL_MATRIX {
        MAMBA2_WALK_D32
    } else if state_size <= LARGE_MATRIX {
        MAMBA2_WALK_D128
    } else {
        MAMBA2_WALK_D256
    };
    // SAFETY: see `ops`; the states were checked against the pool.
    unsafe {
        launcher.launch(MAMBA2_CONVOLVE, ONCE, convolve, &args)?;
        if num_chunked < sequences as usize {
            launcher.launch(walk_kernel, ONCE, walk, &args)?;
        }
        if let Some(scan_kernel) = scan_kernel.filter(|_| num_chunked > 0) {
            launcher.launch(MAMBA2_PAIRS, ONCE, [rows.div_ceil(STATE_TILE), args.groups, 1], &args)?;
            let scan = [args.head_size / MAMBA2_SCAN_COLUMNS, args.heads, sequences];
            launcher.launch(scan_kernel, ONCE, scan, &args)?;
        }
        launcher.launch(MAMBA2_GATE, ONCE, gate, &args)
    }
}

pub(super) fn mamba_convolution(step: &mut GpuStep<'_>, args: MambaConvolution<'_, GpuBackend>) -> Result<()> {
    let MambaConvolution { x, shape, taps, taps_bias, state, out } = args;
    let (rows, channels) = (step.tokens, shape.channels);
    let args = MambaArgs {
        x: x.read_f32("the projections", rows, shape.cols())?.ptr(),
        convolved: out.write("the convolution's output", rows, channels, Format::F32)?.ptr(),
        taps: taps.read(shape.taps * channels)?.ptr(),
        taps_bias: taps_bias.map(|bias| bias.read(channels)).transpose()?.into(),
        ..mamba_args(states_of(step, state)?, shape)?
    };
    if rows == 0 {
        return Ok(());
    }
    let grid = [count(rows)?, args.channels.div_ceil(CONVOLUTION_THREADS), 1];
    // SAFETY: see `ops`; the states were checked against the pool.
    unsafe { step.compute.launcher().launch(MAMBA_CONVOLVE, ONCE, grid, &args) }
}

/// Returns the arguments that all kernels of a Mamba mixer share.
fn mamba_args(states: StatesArgs, shape: MambaShape) -> Result<MambaArgs> {
    let none = DevicePtr::NULL;
    Ok(MambaArgs {
        states,
        x: none,
        convolved: none,
        time_steps: none,
        b: none,
        c: none,
        out: none,
        taps: none,
        taps_bias: none,
        decay: none,
        skip: none,
        channels: count(shape.channels)?,
        state_size: count(shape.state_size)?,
        num_taps: count(shape.taps)?,
        format_out: Format::F32,
    })
}

pub(super) fn mamba(step: &mut GpuStep<'_>, args: Mamba<'_, GpuBackend>) -> Result<()> {
    let Mamba { x, shape, convolved, time_steps, b, c, decay, skip, state, out } = args;
    let MambaShape { channels, state_size, .. } = shape;
    let rows = step.tokens;
    let format = step.compute.activation_format(step.compute.common(), rows);
    let args = MambaArgs {
        x: x.read_f32("the projections", rows, shape.cols())?.ptr(),
        convolved: convolved.read_f32("the convolution's output", rows, channels)?.ptr(),
        time_steps: time_steps.read_f32("the time steps", rows, channels)?.ptr(),
        b: b.read_f32("B", rows, state_size)?.ptr(),
        c: c.read_f32("C", rows, state_size)?.ptr(),
        out: out.write("the mixer's output", rows, channels, format)?.ptr(),
        decay: decay.read(state_size * channels)?.ptr(),
        skip: skip.read(channels)?.ptr(),
        format_out: format,
        ..mamba_args(states_of(step, state)?, shape)?
    };
    if rows == 0 {
        return Ok(());
    }
    let (launcher, rows, sequences) = (step.compute.launcher(), count(rows)?, num_sequences(step)?);
    let walk = [args.channels.div_ceil(STATE_COLUMNS), 1, sequences];
    let walk_kernel = if state_size <= SMALLEST_MATRIX { MAMBA_WALK_D16 } else { MAMBA_WALK_D32 };
    // The padded formats have a multiple of a block's columns.
    let gate = [rows, args.channels.div_ceil(CONVOLUTION_THREADS), 1];
    // SAFETY: see `ops`; the states were checked against the pool.
    unsafe {
        launcher.launch(walk_kernel, ONCE, walk, &args)?;
        launcher.launch(MAMBA_GATE, ONCE, gate, &args)
    }
}

pub(super) fn join_rows(step: &mut GpuStep<'_>, args: JoinRows<'_, GpuBackend>) -> Result<()> {
    let JoinRows { left, right, cols, previous, out } = args;
    let rows = step.tokens;
    // The next product takes this format without a conversion.
    let format = step.compute.activation_format(step.compute.common(), rows);
    let args = JoinRowsArgs {
        states: previous.map_or(Ok(NO_STATES), |state| states_of(step, state))?,
        left: left.read_f32("the left half of joined rows", rows, cols)?.ptr(),
        right: right.read_f32("the right half of joined rows", rows, cols)?.ptr(),
        out: out.write("joined rows", rows, 2 * cols, format)?.ptr(),
        cols: count(cols)?,
        format_out: format,
    };
    if rows == 0 {
        return Ok(());
    }
    // The padded formats have a multiple of a block's columns.
    let grid = [count(rows)?, count(2 * cols)?.div_ceil(CONVOLUTION_THREADS), 1];
    let launcher = step.compute.launcher();
    // SAFETY: see `ops`; the states were checked against the pool.
    unsafe { launcher.launch(JOIN_ROWS, ONCE, grid, &args) }
}

pub(super) fn short_convolution(step: &mut GpuStep<'_>, args: ShortConvolution<'_, GpuBackend>) -> Result<()> {
    let ShortConvolution { x, shape, taps, state, out } = args;
    let rows = step.tokens;
    let states = states_of(step, state)?;
    let format = step.compute.activation_format(step.compute.common(), rows);
    let ShortConvolutionShape { channels, taps: num_taps } = shape;
    let args = ShortConvolutionArgs {
        states,
        x: x.read_f32("the projections", rows, shape.cols())?.ptr(),
        out: out.write("the convolution's output", rows, channels, format)?.ptr(),
        taps: taps.read(num_taps * channels)?.ptr(),
        channels: count(channels)?,
        num_taps: count(num_taps)?,
        format_out: format,
    };
    if rows == 0 {
        return Ok(());
    }
    // The padded formats have a multiple of a block's columns.
    let grid = [count(rows)?, args.channels.div_ceil(CONVOLUTION_THREADS), 1];
    let launcher = step.compute.launcher();
    // SAFETY: see `ops`; the states were checked against the pool.
    unsafe { launcher.launch(SHORT_CONVOLUTION, ONCE, grid, &args) }
}
