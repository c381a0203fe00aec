//! Variables and their visibility.

use std::cell::Cell;
use std::rc::Rc;

use super::names::Names;

/// The variables of a block. Macros defined in the block share it, so they also see later assignments.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Scope(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    variables: Names,
    shared: Cell<bool>,
}

impl Scope {
    pub(in super::super) fn variables(&self) -> &Names {
        &self.0.variables
    }

    /// Notes that a macro holds this scope. Returns true if that is new.
    pub(in super::super) fn share(&self) -> bool {
        !self.0.shared.replace(true)
    }
}
