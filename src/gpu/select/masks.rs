//! Masks of a step's rows: one bit per token that may be chosen. The selection kernels read them with the logits.

use std::ops::Range;

use crate::Result;
use crate::backend::StepLimits;
use crate::launch::args::{MaskArgs, NO_MASK};
use crate::selection::TokenMask;
use crate::{Device, DeviceBuffer, DevicePtr, HostBuffer, Stream};

/// Average room per row, in words of a mask: those of 262,144 tokens.
const WORDS_PER_ROW: usize = 8192;

const WORD_BYTES: usize = size_of::<u32>();

/// The masks of one step's rows, on the host and on the device. The memory begins with the index of each row's mask.
pub(super) struct Masks {
    host: HostBuffer,
    device: DeviceBuffer,
    max_rows: usize,
    /// The index of each row's mask, or `NO_MASK`.
    places: Vec<u32>,
    num_masks: u32,
    /// Words of one mask.
    width: usize,
}

/// Returns the bytes on the host, which equal those on the device.
pub(super) fn bytes(limits: &StepLimits) -> usize {
    let masks = limits.seqs.min(limits.logits_rows).saturating_mul(WORDS_PER_ROW);
    WORD_BYTES.saturating_mul(limits.logits_rows.saturating_add(masks)).max(WORD_BYTES)
}

impl Masks {
    pub(super) fn new(device: &Device, limits: &StepLimits) -> Result<Self> {
        Ok(Self {
            host: HostBuffer::new(device, bytes(limits))?,
            device: DeviceBuffer::new(device, bytes(limits) as u64)?,
            max_rows: limits.logits_rows,
            places: Vec::with_capacity(limits.logits_rows),
            num_masks: 0,
            width: 0,
        })
    }

    /// Removes the last step's masks; the next ones are for rows of `cols`.
    pub(super) fn clear(&mut self, cols: usize) {
        self.places.clear();
        self.num_masks = 0;
        self.width = cols.div_ceil(32);
    }

    /// True if there is room for another mask.
    pub(super) fn has_room(&self) -> bool {
        WORD_BYTES * self.words_of(self.num_masks + 1).end <= self.host.as_slice().len()
    }

    /// Returns the words of the first masks, which follow the indices of all rows.
    fn words_of(&self, masks: u32) -> Range<usize> {
        self.max_rows..self.max_rows + masks as usize * self.width
    }

    /// Adds the mask of the step's next row, or notes that it has none. There must be room for it.
    pub(super) fn add(&mut self, mask: Option<&TokenMask>) {
        self.places.push(mask.map_or(NO_MASK, |_| self.num_masks));
        let Some(mask) = mask else { return };
        let at = self.words_of(self.num_masks).end;
        let (words, _) = self.host.as_mut_slice().as_chunks_mut::<WORD_BYTES>();
        // Tokens after the last word of a mask are forbidden.
        let of_mask = mask.words().iter().copied().chain(std::iter::repeat(0));
        for (word, bits) in words[at..].iter_mut().zip(of_mask).take(self.width) {
            *word = bits.to_ne_bytes();
        }
        self.num_masks += 1;
    }

    /// Queues the copy of the added masks, and returns their addresses for kernels.
    ///
    /// # Safety
    /// The last step's copies have run.
    pub(super) unsafe fn queue(&mut self, stream: &Stream) -> Result<MaskArgs> {
        if self.num_masks == 0 {
            return Ok(NO_MASKS);
        }
        let (words, _) = self.host.as_mut_slice().as_chunks_mut::<WORD_BYTES>();
        for (word, place) in words.iter_mut().zip(&self.places) {
            *word = place.to_ne_bytes();
        }
        let copy = |words: Range<usize>| {
            let range = WORD_BYTES * words.start..WORD_BYTES * words.end;
            let to = self.device.slice().part(range.start as u64, range.len() as u64)?;
            // SAFETY: the host's buffer is written again only for the next step (the caller's promise).
            unsafe { stream.copy_to_device(to, &self.host.as_slice()[range])? };
            Ok(to.ptr())
        };
        Ok(MaskArgs { places: copy(0..self.places.len())?, words: copy(self.words_of(self.num_masks))? })
    }
}

/// Every token of every row may be chosen.
pub(super) const NO_MASKS: MaskArgs = MaskArgs { places: DevicePtr::NULL, words: DevicePtr::NULL };
