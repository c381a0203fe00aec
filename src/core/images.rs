//! The images of a prompt: which tokens stand for them, what their content is, and where RoPE places them. The
//! scheduler and the KV cache read it; the rows themselves stay with the engine.

use std::ops::Range;

/// Rows of images among the tokens of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchImages {
    /// Tokens whose inputs are rows of images, in increasing order.
    pub runs: Vec<ImageRun>,
    pub sight: Sight,
}

/// The later tokens of an image that each of its tokens attends to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sight {
    /// None, as in text.
    #[default]
    Causal,
    /// All in layers with a window, and none in others.
    InWindows,
    All,
}

/// Consecutive tokens of a sequence whose inputs are consecutive rows of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRun {
    /// The flat index of the first token.
    pub first_token: u32,
    pub image: ImageId,
    /// The image's row that is the input of the first token.
    pub first_row: u32,
    pub len: u32,
}

/// Identifies the rows of an image of a sequence; unique over the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(pub u64);

impl ImageRun {
    /// Returns the flat indices of the run's tokens.
    pub fn tokens(&self) -> Range<usize> {
        self.first_token as usize..(self.first_token + self.len) as usize
    }
}

/// Identifies the content of an image's rows: its decoded pixels. All images of an engine have the same encoder.
pub type ImageDigest = [u8; 32];

/// The images of a sequence's prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeqImages {
    /// The spans of tokens that stand for images, in order.
    pub spans: Vec<ImageSpan>,
    /// True if a token of an image has three RoPE positions: time, row and column (M-RoPE).
    pub mrope: bool,
    /// Unless it is causal, a step computes all tokens of an image that are not cached.
    pub sight: Sight,
}

/// Consecutive tokens of a prompt that stand for an image, or for a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageSpan {
    /// The position of the first token.
    pub first: u32,
    pub image: ImageId,
    pub digest: ImageDigest,
    /// The image's row that is the input of the first token.
    pub first_row: u32,
    /// Rows and columns of the span's tokens.
    pub grid: [u32; 2],
    /// True if one more token ends each row but the last.
    pub has_row_ends: bool,
}

impl ImageSpan {
    pub fn num_tokens(&self) -> u32 {
        let row_ends = if self.has_row_ends { self.grid[0] - 1 } else { 0 };
        self.grid[0] * self.grid[1] + row_ends
    }

    /// Returns the positions of the span's tokens.
    pub fn tokens(&self) -> Range<usize> {
        self.first as usize..(self.first + self.num_tokens()) as usize
    }

    /// Returns the number of RoPE positions that the image takes.
    fn rope_extent(&self) -> u32 {
        self.grid[0].max(self.grid[1])
    }
}

impl SeqImages {
    /// Returns the end of a step that begins at `start` and could end at `end`: before an image that may not be cut.
    /// It is `start` or less if nothing can be computed.
    pub fn uncut_end(&self, start: usize, end: usize) -> usize {
        let cut = |span: &&ImageSpan| span.tokens().start < end && end < span.tokens().end;
        match self.spans.iter().find(cut).filter(|_| self.sight != Sight::Causal) {
            Some(span) => span.tokens().start.max(start),
            None => end,
        }
    }

    /// Returns the spans with tokens among `positions`.
    pub fn within(&self, positions: Range<usize>) -> impl Iterator<Item = &ImageSpan> {
        let first = self.spans.partition_point(|span| span.tokens().end <= positions.start);
        self.spans[first..].iter().take_while(move |span| span.tokens().start < positions.end)
    }

    /// Appends to a batch the rows for the tokens at `positions`, the first of which has flat index `first_token`.
    pub fn append_runs(&self, images: &mut BatchImages, positions: Range<usize>, first_token: usize) {
        for span in self.within(positions.clone()) {
            let tokens = span.tokens();
            let (first, end) = (tokens.start.max(positions.start), tokens.end.min(positions.end));
            images.sight = self.sight;
            images.runs.push(ImageRun {
                first_token: (first_token + first - positions.start) as u32,
                image: span.image,
                first_row: span.first_row + (first - tokens.start) as u32,
                len: (end - first) as u32,
            });
        }
    }

    /// Returns the RoPE positions of the tokens at `positions` (M-RoPE; Qwen2-VL, arXiv 2409.12191, section 2.1). An
    /// image begins at the next position of text. Text after it begins one longer side of the image later.
    pub fn rope_positions(&self, positions: Range<usize>) -> impl Iterator<Item = [u32; 3]> {
        let (mut spans, mut shift) = (self.spans.iter().peekable(), 0);
        positions.map(move |position| {
            while let Some(span) = spans.next_if(|span| span.tokens().end <= position) {
                // An image has at least as many tokens as positions.
                shift += span.num_tokens() - span.rope_extent();
            }
            match spans.peek().filter(|span| span.tokens().contains(&position)) {
                Some(span) => {
                    let (time, row) = (span.first - shift, position as u32 - span.first);
                    [time, time + row / span.grid[1], time + row % span.grid[1]]
                }
                None => [position as u32 - shift; 3],
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(spans: &[(u32, [u32; 2])], sight: Sight) -> SeqImages {
        let span = |(i, &(first, grid)): (usize, &(u32, [u32; 2]))| ImageSpan {
            first,
            image: ImageId(i as u64),
            digest: [i as u8; 32],
            first_row: 0,
            grid,
            has_row_ends: false,
        };
        SeqImages { spans: spans.iter().enumerate().map(span).collect(), mrope: true, sight }
    }

    #[test]
    fn positions_of_images_and_of_text_after_them() {
        let images = images(&[(2, [2, 3]), (10, [1, 2])], Sight::Causal);
        let all: Vec<[u32; 3]> = images.rope_positions(0..14).collect();
        let image = [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]];
        assert_eq!(all[..2], [[0; 3], [1; 3]]);
        assert_eq!(all[2..8], image);
        assert_eq!(all[8..], [[5; 3], [6; 3], [7, 7, 7], [7, 7, 8], [9; 3], [10; 3]]);
        for start in 0..14 {
            assert!(images.rope_positions(start..14).eq(all[start..].iter().copied()), "from {start}");
        }
    }

    #[test]
    fn runs_are_cut_with_their_step() {
        let images = images(&[(2, [2, 3]), (10, [1, 2])], Sight::Causal);
        let runs = |positions: Range<usize>| {
            let mut batch = BatchImages::default();
            images.append_runs(&mut batch, positions, 100);
            batch.runs.iter().map(|run| (run.first_token, run.image.0, run.first_row, run.len)).collect::<Vec<_>>()
        };
        assert_eq!(runs(0..12), [(102, 0, 0, 6), (110, 1, 0, 2)]);
        assert_eq!(runs(4..11), [(100, 0, 2, 4), (106, 1, 0, 1)]);
        assert_eq!(runs(8..10), []);
        assert_eq!(runs(12..20), []);
    }

    #[test]
    fn row_ends_are_tokens_of_their_image() {
        let mut images = images(&[(2, [2, 3]), (10, [1, 2])], Sight::Causal);
        images.spans.iter_mut().for_each(|span| span.has_row_ends = true);
        let tokens: Vec<Range<usize>> = images.spans.iter().map(ImageSpan::tokens).collect();
        assert_eq!(tokens, [2..9, 10..12]);
    }

    #[test]
    fn steps_end_outside_of_images_that_attend_to_themselves() {
        let images = images(&[(2, [2, 3])], Sight::All);
        let ends: Vec<usize> = (0..11).map(|end| images.uncut_end(0, end)).collect();
        assert_eq!(ends, [0, 1, 2, 2, 2, 2, 2, 2, 8, 9, 10]);
        // The rest of an image whose beginning is cached.
        assert_eq!((images.uncut_end(4, 7), images.uncut_end(4, 8)), (4, 8));
        assert_eq!(SeqImages { sight: Sight::Causal, ..images }.uncut_end(0, 5), 5);
    }
}
