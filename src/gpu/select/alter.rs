//! Bias, masks and penalties of a step's rows. The tokens whose logits change are sent with every step, so the device
//! keeps no state of a sequence.
//!
//! A list has 12 bytes for each distinct token of a sequence. For 256 sequences of a thousand tokens it has 3 MB. It is
//! written while the device computes the logits, and copied in a tenth of a millisecond. That is a small part of
//! attention's reads for the same tokens, whatever their number.

use super::rows::{self, RowArgs};
use crate::Result;
use crate::backend::StepLimits;
use crate::buffer::count;
use crate::launch::args::{AlterLogitsArgs, AlteredRow, AlteredToken};
use crate::launch::catalog::{ALTER_LOGITS, ONCE};
use crate::launch::launcher::Launcher;
use crate::selection::Alteration;
use crate::{Device, DeviceBuffer, DeviceSlice, HostBuffer, KernelArgs};

/// Average room per row, in tokens.
const TOKENS_PER_ROW: usize = 4096;
/// The least room, in tokens: that of the largest vocabularies.
const LEAST_TOKENS: usize = 1 << 18;

const TOKEN_BYTES: usize = size_of::<AlteredToken>();

/// The alterations of one step's rows, on the host and on the device.
pub(super) struct Alterations {
    /// Altered rows of the step, each with the range of its tokens.
    rows: RowArgs<AlteredRow>,
    max_rows: usize,
    /// The tokens of all these rows, one after the other.
    host: HostBuffer,
    device: DeviceBuffer,
    max_tokens: usize,
    num_tokens: usize,
}

/// Returns the numbers of rows and tokens that fit.
fn room(limits: &StepLimits) -> (usize, usize) {
    let rows = limits.seqs.min(limits.logits_rows);
    (rows, rows.saturating_mul(TOKENS_PER_ROW).max(LEAST_TOKENS))
}

/// Returns the bytes on the host, which equal those on the device.
pub(super) fn bytes(limits: &StepLimits) -> usize {
    let (rows, tokens) = room(limits);
    rows::bytes::<AlteredRow>(rows).saturating_add(tokens.saturating_mul(TOKEN_BYTES))
}

impl Alterations {
    pub(super) fn new(device: &Device, limits: &StepLimits) -> Result<Self> {
        let (max_rows, max_tokens) = room(limits);
        Ok(Self {
            rows: RowArgs::new(device, max_rows)?,
            max_rows,
            host: HostBuffer::new(device, max_tokens * TOKEN_BYTES)?,
            device: DeviceBuffer::new(device, (max_tokens * TOKEN_BYTES) as u64)?,
            max_tokens,
            num_tokens: 0,
        })
    }

    /// Removes the last step's alterations.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.num_tokens = 0;
    }

    /// Adds the alteration of a row. `false` if there is no room: then the host has to alter the row.
    pub(super) fn add(&mut self, row: u32, alteration: &Alteration<'_>) -> bool {
        let tokens = alteration.tokens;
        if self.rows.len() == self.max_rows || tokens.len() > self.max_tokens - self.num_tokens {
            return false;
        }
        let places = self.host.as_mut_slice().as_chunks_mut::<TOKEN_BYTES>().0;
        for (place, token) in places[self.num_tokens..].iter_mut().zip(tokens) {
            AlteredToken { id: token.id, bias: token.bias, seen: token.seen }.store(place);
        }
        let penalties = alteration.penalties;
        self.rows.add(AlteredRow {
            row,
            first: self.num_tokens as u32,
            count: tokens.len() as u32,
            repetition: penalties.repetition,
            frequency: penalties.frequency,
            presence: penalties.presence,
        });
        self.num_tokens += tokens.len();
        true
    }

    /// Queues the copy of the added alterations, and the kernel that applies them to the rows of `cols` at `logits`.
    ///
    /// # Safety
    /// The added rows are rows at `logits`. The last step's copies have run.
    pub(super) unsafe fn queue(&mut self, launcher: &Launcher, logits: DeviceSlice<'_>, cols: usize) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let stream = launcher.stream();
        // SAFETY: the last step's copy has run (the caller's promise).
        let rows = unsafe { self.rows.queue(stream)? };
        let tokens = self.tokens(0, self.num_tokens)?;
        let args = AlterLogitsArgs { logits: logits.ptr(), rows, tokens: tokens.ptr(), cols: count(cols)? };
        // SAFETY: the host's buffer is written again only for the next step (the caller's promise). The kernel skips
        // tokens outside the row, and the rows exist.
        unsafe {
            if self.num_tokens > 0 {
                stream.copy_to_device(tokens, &self.host.as_slice()[..self.num_tokens * TOKEN_BYTES])?;
            }
            launcher.launch(ALTER_LOGITS, ONCE, [count(self.rows.len())?, 1, 1], &args)
        }
    }

    /// Returns the index of a row's first token among those of the step, and their number, which is 0 without an
    /// alteration.
    pub(super) fn place_of(&self, row: usize) -> (u32, u32) {
        let found = self.rows.iter().find(|altered| altered.row as usize == row);
        found.map_or((0, 0), |altered| (altered.first, altered.count))
    }

    /// Returns the memory of all tokens of the step, each now with its logit before the alteration.
    pub(super) fn all_tokens(&self) -> Result<DeviceSlice<'_>> {
        self.tokens(0, self.num_tokens)
    }

    /// Returns the memory of `count` tokens on the device, starting at index `first`.
    fn tokens(&self, first: usize, count: usize) -> Result<DeviceSlice<'_>> {
        self.device.slice().part((first * TOKEN_BYTES) as u64, (count * TOKEN_BYTES) as u64)
    }

    /// Returns the memory of a row's tokens on the device, each now with its logit before the alteration. `None` for a
    /// row without an alteration.
    pub(super) fn tokens_of(&self, row: usize) -> Result<Option<DeviceSlice<'_>>> {
        match self.place_of(row) {
            (_, 0) => Ok(None),
            (first, count) => self.tokens(first as usize, count as usize).map(Some),
        }
    }
}

/// Restores the logits of a row's tokens from the device's list.
pub(super) fn undo(tokens: &[u8], row: &mut [f32]) {
    for token in tokens.as_chunks::<TOKEN_BYTES>().0 {
        let [a, b, c, d, e, f, g, h, ..] = *token;
        if let Some(logit) = row.get_mut(u32::from_ne_bytes([a, b, c, d]) as usize) {
            *logit = f32::from_ne_bytes([e, f, g, h]);
        }
    }
}
