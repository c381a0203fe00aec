//! Progress of a model's load, or of another long pass over a model file.

/// The bytes done and in total. They are bytes of weights; a report of kernels counts units of compilation.
#[derive(Debug, Clone, Copy)]
pub struct LoadProgress {
    pub done: u64,
    pub total: u64,
}
