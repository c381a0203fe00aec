//! Outputs of an engine that runs in a child process, on their way to its parent: through a ring of bytes in memory
//! that both processes have mapped. The child's output thread writes (`sink`), a thread of the parent reads (`ring`).

mod ring;
mod sink;

pub use ring::{EndOfOutputs, OutputReader, RingFiles};
pub use sink::RingSink;
