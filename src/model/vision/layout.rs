//! The order of a picture's patches, their values, and their positions.

use super::spec::{Positions, RopeAxes, VisionSpec};
use crate::pixels::CHANNELS;
use crate::{Error, Result};

/// The patches of a picture in the order of the encoder: squares of `merge` x `merge` patches, row by row or window by
/// window. Within a square, patches go row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// The numbers of rows and columns of patches.
    grid: [usize; 2],
    /// The row and column of each patch.
    places: Vec<[usize; 2]>,
    /// The number of patches in each window. Without windows, it is the number of all patches.
    windows: Vec<usize>,
    /// For each square in the order of the encoder, its index in row-major order.
    squares: Vec<usize>,
}

impl Layout {
    /// # Errors
    /// `Error::Internal` for a picture that was not prepared for this encoder.
    pub(super) fn new(spec: &VisionSpec, [height, width]: [usize; 2]) -> Result<Self> {
        let step = spec.row_side();
        let is_whole = |side: usize| side > 0 && side.is_multiple_of(step);
        if !is_whole(height) || !is_whole(width) {
            return Err(Error::internal(format!("a picture of {width} x {height} for squares of {step} pixels")));
        }
        let merge = spec.merge;
        let grid = [height / spec.patch_size, width / spec.patch_size];
        let [rows, columns] = [grid[0] / merge, grid[1] / merge];
        let side = spec.windows.as_ref().map_or(usize::MAX, |windows| windows.side);
        let (mut places, mut windows, mut squares) = (Vec::new(), Vec::new(), Vec::new());
        for top in (0..rows).step_by(side) {
            for left in (0..columns).step_by(side) {
                let first = places.len();
                for row in top..rows.min(top.saturating_add(side)) {
                    for column in left..columns.min(left.saturating_add(side)) {
                        squares.push(row * columns + column);
                        let within = (0..merge).flat_map(|down| (0..merge).map(move |right| [down, right]));
                        places.extend(within.map(|[down, right]| [row * merge + down, column * merge + right]));
                    }
                }
                windows.push(places.len() - first);
            }
        }
        Ok(Self { grid, places, windows, squares })
    }

    pub(super) fn patches(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of patches in each window.
    pub(super) fn windows(&self) -> &[usize] {
        &self.windows
    }

    pub(super) fn grid(&self) -> [usize; 2] {
        self.grid
    }

    /// Returns the rows of squares, which have `cols` columns, in row-major order of the picture.
    pub(super) fn in_order(&self, rows: &[f32], cols: usize) -> Vec<f32> {
        if self.windows.len() == 1 {
            return rows.to_vec();
        }
        let mut ordered = vec![0.0; rows.len()];
        for (row, &square) in rows.chunks_exact(cols).zip(&self.squares) {
            ordered[square * cols..][..cols].copy_from_slice(row);
        }
        ordered
    }

    /// Returns the rows of squares with a row `end` after each row of the picture but the last.
    pub(super) fn with_row_ends(&self, spec: &VisionSpec, rows: &[f32], end: &[f32]) -> Vec<f32> {
        let columns = self.grid[1] / spec.merge;
        let lines: Vec<&[f32]> = rows.chunks_exact(columns * end.len()).collect();
        lines.join(end)
    }

    /// Returns the values of each token: channel by channel, and row by row within a channel. A class token has zeros.
    pub(super) fn numbers(&self, spec: &VisionSpec, values: &[f32]) -> Vec<f32> {
        let side = spec.patch_size;
        let [height, width] = self.grid.map(|count| count * side);
        let mut numbers = Vec::with_capacity(spec.tokens(self.patches()) * spec.patch_cols());
        for &[row, column] in &self.places {
            for channel in 0..CHANNELS {
                for y in 0..side {
                    let first = (channel * height + row * side + y) * width + column * side;
                    numbers.extend_from_slice(&values[first..][..side]);
                }
            }
        }
        numbers.resize(spec.tokens(self.patches()) * spec.patch_cols(), 0.0);
        numbers
    }

    /// Returns the position embedding of each patch, of `cols` columns.
    pub(super) fn positions(&self, table: &[f32], positions: Positions, cols: usize) -> Vec<f32> {
        match positions {
            Positions::Corners { side } => self.interpolated(table, side, cols),
            Positions::Antialiased { side } => self.weighted(table, side, cols, covered),
            Positions::Bicubic { side } => self.weighted(table, side, cols, nearest),
            Positions::Axes { len } => {
                let row = |index: usize| &table[index * cols..][..cols];
                let sum = |&[y, x]: &[usize; 2]| row(x).iter().zip(row(len + y)).map(|(x, y)| x + y);
                self.places.iter().flat_map(sum).collect()
            }
        }
    }

    /// Returns bilinear interpolations of a table of `side` x `side` positions, aligned at the corners.
    fn interpolated(&self, table: &[f32], side: usize, cols: usize) -> Vec<f32> {
        let [rows, columns] = self.grid.map(|count| along(count, side));
        let mut positions = Vec::with_capacity(self.places.len() * cols);
        for &[row, column] in &self.places {
            let (y, x) = (&rows[row], &columns[column]);
            let corners = [
                (y.first, x.first, (1.0 - y.rest) * (1.0 - x.rest)),
                (y.first, x.second, (1.0 - y.rest) * x.rest),
                (y.second, x.first, y.rest * (1.0 - x.rest)),
                (y.second, x.second, y.rest * x.rest),
            ];
            let of_corner =
                corners.map(|(row, column, weight)| (&table[(row * side + column) * cols..][..cols], weight));
            let [(a, wa), (b, wb), (c, wc), (d, wd)] = of_corner;
            let sums = a.iter().zip(b).zip(c.iter().zip(d)).map(|((a, b), (c, d))| a * wa + b * wb + c * wc + d * wd);
            positions.extend(sums);
        }
        positions
    }

    /// Returns sums of the entries of a table of `side` x `side` positions. `along` gives the entries and their weights
    /// for each row or column of the grid.
    fn weighted(&self, table: &[f32], side: usize, cols: usize, along: fn(usize, usize) -> Vec<Entries>) -> Vec<f32> {
        let [rows, columns] = self.grid.map(|count| along(count, side));
        let mut positions = Vec::with_capacity(self.places.len() * cols);
        for &[row, column] in &self.places {
            let mut sums = vec![0.0; cols];
            for &(y, of_row) in &rows[row] {
                for &(x, of_column) in &columns[column] {
                    let entry = &table[(y * side + x) * cols..][..cols];
                    sums.iter_mut().zip(entry).for_each(|(sum, value)| *sum += of_row * of_column * value);
                }
            }
            positions.extend(sums);
        }
        positions
    }

    /// Returns cos and sin of each patch's RoPE pairs. One half of the pairs rotates with the row, the other half with
    /// the column.
    pub(super) fn angles(&self, spec: &VisionSpec, rope: RopeAxes) -> Vec<f32> {
        let (head_dim, half) = (spec.head_dim(), spec.head_dim() / 4);
        let frequency = |exponent: usize| 1.0 / rope.base.powf(exponent as f32 / head_dim as f32);
        let mut frequencies: [Vec<f32>; 2] =
            [0, rope.first_of_columns].map(|first| (0..half).map(|pair| frequency(first + 4 * pair)).collect());
        if rope.is_column_first {
            frequencies.reverse();
        }
        let mut angles = Vec::with_capacity(self.places.len() * head_dim);
        for &[row, column] in &self.places {
            let place = if rope.is_column_first { [column, row] } else { [row, column] };
            let of_place = place
                .iter()
                .zip(&frequencies)
                .flat_map(|(&at, frequencies)| frequencies.iter().map(move |frequency| at as f32 * frequency));
            let turns: Vec<f64> = of_place.map(f64::from).collect();
            angles.extend(turns.iter().map(|turn| turn.cos() as f32));
            angles.extend(turns.iter().map(|turn| turn.sin() as f32));
        }
        angles
    }
}

/// Entries of a table along one side, with their weights.
type Entries = Vec<(usize, f32)>;

/// A point between two rows of a table.
struct Between {
    first: usize,
    second: usize,
    /// The distance from the first row, from 0 to 1.
    rest: f32,
}

/// Returns points in a table of `side` entries, evenly spaced from the first entry to the last.
fn along(count: usize, side: usize) -> Vec<Between> {
    let last = side - 1;
    let point = |index: usize| {
        let at = if count == 1 { 0.0 } else { index as f32 * (last as f32 / (count - 1) as f32) };
        let first = (at as usize).min(last);
        Between { first, second: (first + 1).min(last), rest: at - first as f32 }
    };
    (0..count).map(point).collect()
}

/// Returns the entries of a table of `side` entries that each of `count` parts of it is made of, with their weights.
fn covered(count: usize, side: usize) -> Vec<Entries> {
    let scale = side as f32 / count as f32;
    let reach = scale.max(1.0);
    let part = |index: usize| {
        let center = (index as f32 + 0.5) * scale - 0.5;
        let weights = (0..side).map(|at| (at, (1.0 - (at as f32 - center).abs() / reach).max(0.0)));
        let kept: Entries = weights.filter(|&(_, weight)| weight > 0.0).collect();
        let total: f32 = kept.iter().map(|(_, weight)| weight).sum();
        kept.into_iter().map(|(at, weight)| (at, weight / total)).collect()
    };
    (0..count).map(part).collect()
}

/// Divides a table of `side` entries into `count` parts. Returns the four entries around each part, with the weights of
/// cubic convolution (Keys, 1981, a = -0.75). Beyond the ends, it is the last entry.
fn nearest(count: usize, side: usize) -> Vec<Entries> {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let part = |index: usize| {
        let center = (index as f32 + 0.5) * (side as f32 / count as f32) - 0.5;
        let (first, rest) = (center.floor(), center - center.floor());
        let weights = [far(rest + 1.0), near(rest), near(1.0 - rest), far(2.0 - rest)];
        let entry = |tap: usize| (first + tap as f32 - 1.0).clamp(0.0, (side - 1) as f32) as usize;
        weights.into_iter().enumerate().map(|(tap, weight)| (entry(tap), weight)).collect()
    };
    (0..count).map(part).collect()
}
