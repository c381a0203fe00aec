//! Cuts a batch into segments, which attention takes for sequences, and segments into tiles of rows.
//!
//! Usually a segment has all rows of a sequence. In batch-invariant mode it has a single row, so that a result does not
//! depend on its chunk. The rows of an image whose tokens attend to each other are a segment, and so is the text before
//! and after it.

use std::cmp::Reverse;
use std::ops::Range;

use crate::batch::Batch;
use crate::images::Sight;

/// Consecutive rows of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) seq: usize,
    /// Flat indices of its rows.
    pub(super) tokens: Range<usize>,
    /// The number of positions that its last row attends to.
    pub(super) context: u32,
    /// True if the rows are those of an image and attend to each other.
    pub(super) is_image: bool,
    /// True if the decode kernel computes it. Other segments with one row are too many for that kernel's buffers.
    pub(super) is_decode: bool,
}

/// Rows of a segment that a block of the prefill kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) is_image: bool,
    pub(super) segment: u32,
    /// The first row within the segment.
    pub(super) first_row: u32,
    last_position: u32,
}

/// Replaces `segments` by those of a batch.
pub(super) fn of_batch(batch: &Batch, by_token: bool, segments: &mut Vec<Segment>) {
    segments.clear();
    let mut images = batch.images.runs.iter().filter(|_| batch.images.sight != Sight::Causal).peekable();
    for seq in 0..batch.num_seqs() {
        let all = batch.tokens_of(seq);
        let mut start = all.start;
        while start < all.end {
            let image = images.next_if(|run| run.first_token as usize == start);
            let next_image = images.peek().map_or(all.end, |run| (run.first_token as usize).min(all.end));
            let end = match image {
                Some(run) => run.tokens().end.min(all.end),
                None if by_token => start + 1,
                None => next_image,
            };
            let context = if end == all.end { batch.context_lens[seq] } else { batch.positions[end - 1] + 1 };
            let is_whole = (start, end) == (all.start, all.end);
            let is_decode = end - start == 1 && image.is_none() && (by_token || is_whole);
            segments.push(Segment { seq, tokens: start..end, context, is_image: image.is_some(), is_decode });
            start = end;
        }
    }
}

/// Replaces `tiles` by those of the segments that the decode kernel does not compute, `rows` rows each at most: those
/// of text first, and the ones with the most keys before others.
pub(super) fn tiles(segments: &[Segment], positions: &[u32], rows: usize, tiles: &mut Vec<Tile>) {
    tiles.clear();
    for (index, segment) in segments.iter().enumerate().filter(|(_, segment)| !segment.is_decode) {
        let len = segment.tokens.len();
        tiles.extend((0..len).step_by(rows).map(|first| Tile {
            is_image: segment.is_image,
            segment: index as u32,
            first_row: first as u32,
            last_position: positions[segment.tokens.start + len.min(first + rows) - 1],
        }));
    }
    let order = |tile: &Tile| (tile.is_image, Reverse((tile.last_position, tile.segment, tile.first_row)));
    tiles.sort_unstable_by_key(order);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::{BatchImages, ImageId, ImageRun};

    /// Two sequences: a chunk at positions 4 to 13, with images at 6 to 8 and at 9 and 10, and a decode at 20.
    fn batch(sight: Sight) -> Batch {
        let run = |first_token, len| ImageRun { first_token, image: ImageId(0), first_row: 0, len };
        Batch {
            token_ids: vec![0; 11],
            positions: (4..14).chain([20]).collect(),
            cu_seqlens_q: vec![0, 10, 11],
            context_lens: vec![14, 21],
            images: BatchImages { runs: vec![run(2, 3), run(5, 2)], sight },
            ..Batch::default()
        }
    }

    fn segments(sight: Sight, by_token: bool) -> Vec<(usize, Range<usize>, u32, bool, bool)> {
        let mut segments = Vec::new();
        of_batch(&batch(sight), by_token, &mut segments);
        let parts = |s: Segment| (s.seq, s.tokens, s.context, s.is_image, s.is_decode);
        segments.into_iter().map(parts).collect()
    }

    #[test]
    fn images_are_segments_if_they_attend_to_themselves() {
        let decode = (1, 10..11, 21, false, true);
        assert_eq!(segments(Sight::Causal, false), [(0, 0..10, 14, false, false), decode.clone()]);
        let images = [(0, 2..5, 9, true, false), (0, 5..7, 11, true, false)];
        let text = [(0, 0..2, 6, false, false), (0, 7..10, 14, false, false)];
        assert_eq!(
            segments(Sight::All, false),
            [text[0].clone(), images[0].clone(), images[1].clone(), text[1].clone(), decode.clone()]
        );
        let by_token = segments(Sight::All, true);
        let single = |token: usize| (0, token..token + 1, token as u32 + 5, false, true);
        assert_eq!(by_token[..3], [single(0), single(1), images[0].clone()]);
        assert_eq!(by_token[3..], [images[1].clone(), single(7), single(8), single(9), decode]);
    }

    #[test]
    fn tiles_of_images_come_last() {
        let (mut segments, mut of_segments) = (Vec::new(), Vec::new());
        of_batch(&batch(Sight::All), false, &mut segments);
        tiles(&segments, &batch(Sight::All).positions, 2, &mut of_segments);
        let places: Vec<_> = of_segments.iter().map(|tile| (tile.is_image, tile.segment, tile.first_row)).collect();
        let text = [(false, 3, 2), (false, 3, 0), (false, 0, 0)];
        assert_eq!(places[..3], text);
        assert_eq!(places[3..], [(true, 2, 0), (true, 1, 2), (true, 1, 0)]);
    }
}
