//! The limit on the work of finding lexemes.

/// The most steps of work, of some 300 ns each. Grammars that take more are read as single characters.
const MAX_WORK: usize = 2_000_000;

/// The remaining work for a grammar.
#[derive(Debug)]
pub(super) struct Work(usize);

impl Work {
    /// Returns the full amount.
    pub(super) fn begin() -> Self {
        Self(MAX_WORK)
    }

    /// Spends steps; `None` if there are too few left.
    pub(super) fn spend(&mut self, steps: usize) -> Option<()> {
        self.0 = self.0.saturating_sub(steps);
        (self.0 > 0).then_some(())
    }
}
