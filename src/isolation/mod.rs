//! Carries outputs of an engine in a child process to its parent, through a ring of bytes in memory that both processes
//! map. The child's output thread writes (`sink`), and a thread of the parent reads (`ring`).

mod ring;
mod sink;

pub use ring::{EndOfOutputs, OutputReader, RingFiles};
pub use sink::RingSink;
