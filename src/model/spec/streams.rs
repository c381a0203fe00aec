//! Several hidden streams per token.

/// `STREAMS` hidden streams per token (AltUp, arXiv 2301.13310) and a low-rank addition to the residual of each layer
/// (Laurel, arXiv 2411.07501).
///
/// A layer predicts all streams from their values, changes the active one, and corrects the others by the error of its
/// prediction. The layer's input is added to the other streams. The mean of all streams, each with the level of the
/// active one, is the hidden state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamsSpec {
    /// Rows of the first matrix of the low-rank addition.
    pub laurel_rank: usize,
}
