//! Names with mutable values: the variables of a block, and the attributes of a namespace.

use std::cell::RefCell;

use super::{OVERHEAD, Value};
use crate::template::fault::Res;
use crate::template::meter::{self, Charge};
use crate::template::syntax::ast::Name;

#[derive(Debug, Default)]
pub(in super::super) struct Names(RefCell<Entries>);

#[derive(Debug, Default)]
struct Entries {
    entries: Vec<(Name, Value)>,
    charge: Charge,
}

impl Names {
    /// Returns an empty list of names. It is charged, since a template may create any number of namespaces.
    pub(in super::super) fn new() -> Res<Self> {
        let charge = Charge::new(OVERHEAD)?;
        Ok(Self(RefCell::new(Entries { entries: Vec::new(), charge })))
    }

    pub(in super::super) fn get(&self, name: &str) -> Res<Option<Value>> {
        let Entries { entries, .. } = &*self.0.borrow();
        meter::spend(entries.len() / 32)?;
        Ok(entries.iter().find(|(other, _)| **other == *name).map(|(_, value)| value.clone()))
    }

    pub(in super::super) fn set(&self, name: &Name, value: Value) -> Res<()> {
        let mut borrowed = self.0.borrow_mut();
        let Entries { entries, charge } = &mut *borrowed;
        meter::spend(1 + entries.len() / 16)?;
        let replaced = match entries.iter_mut().find(|(other, _)| other == name) {
            Some((_, place)) => Some(std::mem::replace(place, value)),
            None => {
                let first = if entries.is_empty() { OVERHEAD } else { 0 };
                charge.add(first + size_of::<(Name, Value)>() + name.len())?;
                entries.push((Name::clone(name), value));
                None
            }
        };
        // The old value is dropped only when nothing is borrowed, since it may contain these names.
        drop(borrowed);
        drop(replaced);
        Ok(())
    }

    /// Frees the values, which may contain these names.
    pub(in super::super) fn clear(&self) {
        let entries = std::mem::take(&mut self.0.borrow_mut().entries);
        drop(entries);
    }
}
