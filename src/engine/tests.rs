//! The engine over a scripted executor.
