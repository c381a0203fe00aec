//! The objects that the backend's ops compute on: parts of the engine's allocations, with their shapes. Each shares the
//! ownership of its allocation with the backend, which keeps all allocations until queued work has run.

pub(crate) mod expert_copies;
mod experts;
pub(crate) mod packed;

pub(super) use experts::ExpertMatrix;
pub use experts::{ExpertWork, Experts};

use super::compile::plan::Operands;
use super::device::arena::aligned;
use super::launch::args::Format;
use super::{DeviceBuffer, DeviceSlice, KernelType};
use crate::backend::{
    BufferShape, HeadsShape, KvLayerSpec, KvShape, MatrixShape, RopeKind, RopeShape, StateLayerSpec, StateShape,
    VectorShape,
};
use crate::quant::GgmlType;
use crate::{Error, Result};

/// Weights are stored in tiles of 16 rows x 256 columns.
pub(super) const TILE_ROWS: usize = 16;
pub(super) const TILE_COLS: usize = 256;

/// `matmul` reads whole groups of this many activation rows; rows after the last may hold anything.
const ROW_GROUP: usize = 64;

impl Format {
    pub fn is_f32(self) -> bool {
        self == Self::F32
    }

    /// Returns the row-major format of the same numbers, which the vendor's library takes.
    pub fn row_major(self) -> Self {
        match self {
            Self::F16Tiled => Self::F16,
            Self::Bf16Tiled => Self::Bf16,
            other => other,
        }
    }

    /// Returns the bytes of one number.
    pub fn element_bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 | Self::F16Tiled | Self::Bf16Tiled => 2,
            Self::Fp8 => 1,
        }
    }

    /// Returns the bytes of `rows` rows, padding included.
    pub fn bytes(self, rows: usize, cols: usize) -> u64 {
        let padded = cols.next_multiple_of(TILE_COLS) as u64;
        match self {
            Self::F32 => 4 * rows as u64 * cols as u64,
            Self::F16 | Self::Bf16 => 2 * rows as u64 * padded,
            Self::F16Tiled | Self::Bf16Tiled => 2 * rows.next_multiple_of(ROW_GROUP) as u64 * padded,
            Self::Fp8 => Self::fp8_bytes(rows, cols).iter().sum(),
        }
    }

    /// Returns the bytes of rows of 8-bit floats, and of the scales that follow them.
    pub fn fp8_bytes(rows: usize, cols: usize) -> [u64; 2] {
        [aligned(rows as u64 * cols.next_multiple_of(TILE_COLS) as u64), aligned(4 * rows as u64)]
    }

    /// Returns the bytes that hold `rows` rows in any format.
    pub fn most_bytes(rows: usize, cols: usize) -> u64 {
        Self::F32.bytes(rows, cols).max(Self::F16Tiled.bytes(rows, cols))
    }
}

/// Activations. The op that writes them chooses the format that their reader needs.
#[derive(Debug)]
pub struct Buffer {
    memory: DeviceBuffer,
    format: Format,
}

impl Buffer {
    /// Wraps uninitialised memory.
    pub(super) fn new(memory: DeviceBuffer) -> Self {
        Self { memory, format: Format::F32 }
    }

    /// Returns the format of the rows written last.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Returns all of the memory, whatever it holds.
    pub(super) fn memory(&self) -> DeviceSlice<'_> {
        self.memory.slice()
    }

    /// Returns the memory, for a kernel that reads `rows` rows and does not know 8-bit floats.
    ///
    /// # Errors
    /// `Error::Internal` if the buffer is too small, or its rows are 8-bit floats.
    pub(super) fn read(&self, what: &str, rows: usize, cols: usize) -> Result<DeviceSlice<'_>> {
        match self.format {
            Format::Fp8 => Err(Error::internal(format!("{what}: 8-bit floats, which are not read without scales"))),
            _ => self.read_any(what, rows, cols),
        }
    }

    /// Like `read`, for kernels that also take 8-bit floats. Their scales follow the rows.
    pub(super) fn read_any(&self, what: &str, rows: usize, cols: usize) -> Result<DeviceSlice<'_>> {
        self.check(what, rows, cols, self.format)?;
        Ok(self.memory.slice())
    }

    /// Like `read`, for rows that must be f32.
    pub(super) fn read_f32(&self, what: &str, rows: usize, cols: usize) -> Result<DeviceSlice<'_>> {
        if !self.format.is_f32() {
            return Err(Error::internal(format!("{what} is in format {:?}, f32 is needed", self.format)));
        }
        self.read(what, rows, cols)
    }

    /// Returns the memory, for a kernel that writes `rows` rows in `format`.
    pub(super) fn write(&mut self, what: &str, rows: usize, cols: usize, format: Format) -> Result<DeviceSlice<'_>> {
        self.check(what, rows, cols, format)?;
        self.format = format;
        Ok(self.memory.slice())
    }

    fn check(&self, what: &str, rows: usize, cols: usize, format: Format) -> Result<()> {
        let needed = format.bytes(rows, cols);
        let bytes = self.memory.bytes();
        if needed <= bytes {
            return Ok(());
        }
        Err(Error::internal(format!("{what} has {bytes} bytes, {rows} rows of {cols} in {format:?} take {needed}")))
    }
}

/// The number of a weight among those that are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Staged(pub usize);

/// A stack of matrices in tiles.
#[derive(Debug)]
pub struct Matrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Groups of outputs with consecutive tiles of one type.
    pub(super) segments: Vec<Segment>,
    /// Its number among the weights that steps of many rows read from a copy.
    pub(super) staged: Option<Staged>,
}

impl Matrix {
    /// Returns the same matrix with its tiles in `copy`, a copy of all of them.
    pub(super) fn moved_to(&self, copy: &DeviceBuffer) -> Result<Self> {
        let start = self.segments.first().map_or(0, |first| first.tiles.ptr().address());
        let moved = |segment: &Segment| {
            let at = segment.tiles.ptr().address().wrapping_sub(start);
            Ok(Segment { tiles: copy.part(at, segment.tiles.bytes())?, ..segment.clone() })
        };
        let segments = self.segments.iter().map(moved).collect::<Result<_>>()?;
        Ok(Self { segments, rows: self.rows, cols: self.cols, staged: None })
    }

    /// Splits the stack of a feed-forward's gate and up, each of which has half of the outputs. `None` unless both have
    /// one type and start at a tile.
    pub(super) fn gate_and_up(&self) -> Result<Option<[Outputs<'_>; 2]>> {
        let half = self.rows / 2;
        Ok(match &self.segments[..] {
            [segment] if half.is_multiple_of(TILE_ROWS) => {
                let up = segment.outputs_from(half, self.cols)?;
                Some([Outputs { rows: half, ..segment.outputs() }, up])
            }
            [gate, up] if gate.ty == up.ty && gate.rows == up.rows => Some([gate.outputs(), up.outputs()]),
            _ => None,
        })
    }
}

#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub ty: KernelType,
    pub first_row: usize,
    pub rows: usize,
    pub tiles: DeviceBuffer,
    /// f32, one value per output.
    pub bias: Option<DeviceBuffer>,
    /// The weights dequantised for the vendor's matrix library, if that copy is kept.
    pub dense: Option<Dense>,
}

/// Weights in the format of a vendor's matrix library: rows of 16-bit numbers, padded to whole tiles.
#[derive(Debug, Clone)]
pub(super) struct Dense {
    pub rows: DeviceBuffer,
    /// The scales (f32) of the rows, if these are 8-bit floats instead.
    pub scales: Option<DeviceBuffer>,
}

/// Outputs of a segment that one launch computes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outputs<'b> {
    pub ty: KernelType,
    pub first_row: usize,
    pub rows: usize,
    pub tiles: DeviceSlice<'b>,
    pub bias: Option<DeviceSlice<'b>>,
}

impl Segment {
    /// True if the library multiplies it as 8-bit floats.
    pub(super) fn is_fp8(&self) -> bool {
        self.dense.as_ref().is_some_and(|dense| dense.scales.is_some())
    }

    /// Returns all outputs of the segment.
    pub(super) fn outputs(&self) -> Outputs<'_> {
        Outputs {
            ty: self.ty,
            first_row: self.first_row,
            rows: self.rows,
            tiles: self.tiles.slice(),
            bias: self.bias.as_ref().map(DeviceBuffer::slice),
        }
    }

    /// Returns the outputs starting at `first`, a multiple of 16.
    pub(super) fn outputs_from(&self, first: usize, cols: usize) -> Result<Outputs<'_>> {
        let all = self.outputs();
        Ok(Outputs {
            first_row: self.first_row + first,
            rows: self.rows - first,
            tiles: all.tiles.after(self.ty.matrix_bytes(first, cols))?,
            bias: all.bias.map(|bias| bias.after(4 * first as u64)).transpose()?,
            ..all
        })
    }
}

/// Weights or biases of norms, or attention sinks, f32.
#[derive(Debug)]
pub struct Vector {
    memory: DeviceBuffer,
    len: usize,
}

impl Vector {
    /// Wraps the first `len` elements of this memory.
    pub(super) fn new(memory: DeviceBuffer, len: usize) -> Self {
        Self { memory, len }
    }

    /// Returns the memory, to be read as `len` elements.
    ///
    /// # Errors
    /// `Error::Internal` if the vector has another length.
    pub(super) fn read(&self, len: usize) -> Result<DeviceSlice<'_>> {
        match self.len == len {
            true => Ok(self.memory.slice()),
            false => Err(Error::internal(format!("a vector of {} elements for {len}", self.len))),
        }
    }
}

/// One matrix per head, `[heads][rows][cols]`, f16.
#[derive(Debug)]
pub struct HeadMatrices {
    pub(super) heads: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) weights: DeviceBuffer,
}

/// RoPE frequencies, f32, with the other numbers that the angles depend on.
#[derive(Debug)]
pub struct Rope {
    pub(super) kind: RopeKind,
    pub(super) num_pairs: usize,
    pub(super) inv_freq: DeviceBuffer,
    pub(super) magnitude: f32,
}

/// K and V of one layer, `[num_blocks][num_kv_heads][block_size][head_dim]` each.
#[derive(Debug)]
pub struct KvLayer {
    pub(super) spec: KvLayerSpec,
    pub(super) k: DeviceBuffer,
    pub(super) v: DeviceBuffer,
}

/// States of one layer: `[num_slots][window][channels]` and `[num_slots][heads][key_size][value_size]`, f32.
#[derive(Debug)]
pub struct StateLayer {
    pub(super) spec: StateLayerSpec,
    pub(super) windows: DeviceBuffer,
    pub(super) matrices: DeviceBuffer,
}

impl BufferShape for Buffer {
    fn holds(&self, rows: usize, cols: usize) -> bool {
        // No count of bytes below overflows.
        let padded = cols.checked_next_multiple_of(TILE_COLS).map(|cols| cols.max(TILE_COLS));
        let can_be = padded.and_then(|cols| rows.checked_mul(cols)).is_some_and(|n| n <= usize::MAX / 64);
        can_be && self.format.bytes(rows, cols) <= self.memory.bytes()
    }

    fn room(&self) -> String {
        format!("{} bytes", self.memory.bytes())
    }
}

impl MatrixShape for Matrix {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }
}

impl VectorShape for Vector {
    fn elements(&self) -> usize {
        self.len
    }
}

impl HeadsShape for HeadMatrices {
    fn heads(&self) -> usize {
        self.heads
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }
}

impl RopeShape for Rope {
    fn num_pairs(&self) -> usize {
        self.num_pairs
    }
}

impl KvShape for KvLayer {
    fn spec(&self) -> &KvLayerSpec {
        &self.spec
    }
}

impl StateShape for StateLayer {
    fn spec(&self) -> &StateLayerSpec {
        &self.spec
    }
}

impl KernelType {
    /// Returns the bytes of a tile: those of its 16 x 256 weights in the file, or more if the type needs them.
    pub fn tile_bytes(self) -> u64 {
        let (ty, more) = match self {
            // A ternary digit takes two bits.
            Self::Tq1_0 => (GgmlType::TQ2_0, 0),
            // The tensor's scale, and padding.
            Self::Nvfp4 => (GgmlType::NVFP4, 32),
            _ => (self.ggml_type(), 0),
        };
        (TILE_ROWS * TILE_COLS / ty.block_elements() * ty.block_bytes() + more) as u64
    }

    /// Returns the bytes of a matrix in tiles.
    pub fn matrix_bytes(self, rows: usize, cols: usize) -> u64 {
        self.tile_bytes() * rows.div_ceil(TILE_ROWS) as u64 * cols.div_ceil(TILE_COLS) as u64
    }

    /// Returns the format in which its matrix kernels take activations; `None` for F32, which is multiplied in f32.
    pub fn matmul_format(self) -> Option<Format> {
        match self.operands() {
            Operands::F16 => Some(Format::F16Tiled),
            Operands::Bf16 => Some(Format::Bf16Tiled),
            Operands::Nothing => None,
        }
    }
}

/// Converts a count to the 32 bits that kernels take.
///
/// # Errors
/// `Error::Internal` beyond 32 bits.
pub(super) fn count(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::internal(format!("{n} does not fit 32 bits")))
}
