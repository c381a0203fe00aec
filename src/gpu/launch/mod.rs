//! Kernels and their launches: which there are, what they take, which are loaded, and how large each launch is.

pub(crate) mod args;
pub(crate) mod catalog;
pub(crate) mod engine_functions;
pub(crate) mod launcher;
pub(crate) mod loaded;
pub(crate) mod plans;
pub(crate) mod product;
