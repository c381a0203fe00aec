//! Work on streams: the operations, their order, and the memory that they use.

mod capture;
pub(crate) mod host_memory;
pub(crate) mod operation;
pub(crate) mod order;
pub(crate) mod product;
pub(crate) mod queue;
