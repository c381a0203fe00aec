//! Variables, and who sees them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::ast::Name;
use super::fault::Res;
use super::meter::{self, Charge};
use super::value::Value;

/// The variables of a block. The macros defined in the block share it: they see what it is given later as well.
#[derive(Debug, Clone, Default)]
pub(super) struct Scope(Rc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    variables: RefCell<Vec<(Name, Value)>>,
    charge: RefCell<Charge>,
    shared: Cell<bool>,
}

impl Scope {
    pub(super) fn get(&self, name: &str) -> Res<Option<Value>> {
        let variables = self.0.variables.borrow();
        meter::spend(variables.len() / 32)?;
        Ok(variables.iter().find(|(other, _)| **other == *name).map(|(_, value)| value.clone()))
    }

    pub(super) fn set(&self, name: &Name, value: Value) -> Res<()> {
        let mut variables = self.0.variables.borrow_mut();
        meter::spend(1 + variables.len() / 16)?;
        // What was there is dropped when nothing is borrowed any more: it may be a macro that holds this scope.
        let replaced = match variables.iter_mut().find(|(other, _)| other == name) {
            Some((_, place)) => Some(std::mem::replace(place, value)),
            None => {
                let first = if variables.is_empty() { size_of::<Inner>() } else { 0 };
                self.0.charge.borrow_mut().add(first + size_of::<(Name, Value)>())?;
                variables.push((Name::clone(name), value));
                None
            }
        };
        drop(variables);
        drop(replaced);
        Ok(())
    }

    /// Notes that a macro holds this scope; whether that is new.
    pub(super) fn share(&self) -> bool {
        !self.0.shared.replace(true)
    }

    /// Frees the values, among which may be macros that hold this scope.
    pub(super) fn clear(&self) {
        drop(self.0.variables.take());
    }
}
