//! The backend over a real driver library: the stand-in, or a GPU.

mod args;
