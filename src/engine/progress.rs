//! Progress of a load, or of another long reading of a model file.

/// Bytes done and in all (of weights; a report of kernels counts units of compilation).
#[derive(Debug, Clone, Copy)]
pub struct LoadProgress {
    pub done: u64,
    pub total: u64,
}
