//! Variables, and who sees them.

use std::cell::Cell;
use std::rc::Rc;

use super::names::Names;

/// The variables of a block. The macros defined in the block share it: they see what it is given later as well.
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

    /// Notes that a macro holds this scope; whether that is new.
    pub(in super::super) fn share(&self) -> bool {
        !self.0.shared.replace(true)
    }
}
