//! The operations that programs put on streams.

use std::fmt;
use std::sync::Arc;

use super::product::Product;
use crate::cpu::Callback;

/// An address of the host, as a program gave it. Its memory is read or written when the operation runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostAddress(pub usize);

#[derive(Debug, Clone)]
pub(crate) enum Operation {
    ToDevice {
        to: u64,
        from: HostAddress,
        bytes: usize,
    },
    ToHost {
        to: HostAddress,
        from: u64,
        bytes: usize,
    },
    OnDevice {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    Launch(Launch),
    /// A function of the program.
    Host(HostFunction),
    /// A product of the matrix library.
    Product(Product),
    /// Marks a position, for events.
    Record,
    Wait(Mark),
    Graph(Arc<[Operation]>),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToDevice { to, from: HostAddress(from), bytes } => {
                write!(f, "copy of {bytes} bytes from the host's {from:#x} to {to:#x}")
            }
            Self::ToHost { to: HostAddress(to), from, bytes } => {
                write!(f, "copy of {bytes} bytes from {from:#x} to the host's {to:#x}")
            }
            Self::OnDevice { to, from, bytes } => write!(f, "copy of {bytes} bytes from {from:#x} to {to:#x}"),
            Self::Fill { to, bytes, .. } => write!(f, "fill of {bytes} bytes at {to:#x}"),
            Self::Launch(launch) => write!(f, "launch of {}", launch.name),
            Self::Host(_) => write!(f, "call of a function of the host"),
            Self::Product(product) => write!(f, "product of the matrix library into {:#x}", product.d.at),
            Self::Record => write!(f, "record of an event"),
            Self::Wait(_) => write!(f, "wait for an event"),
            Self::Graph(operations) => write!(f, "graph of {} operations", operations.len()),
        }
    }
}

/// A kernel launch with its arguments at the time when it was enqueued.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    /// The function's number, which detects a module that was unloaded before its launch ran.
    pub function: u64,
    pub name: Arc<str>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// Arguments in units of 16 bytes, for the alignment.
    pub arguments: Arc<[u128]>,
    pub argument_bytes: usize,
}

/// A function of the program with its argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostFunction {
    pub function: Callback,
    pub data: HostAddress,
}

/// The position of an operation: the stream, and the number of operations enqueued on it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub stream: u64,
    pub position: u64,
}
