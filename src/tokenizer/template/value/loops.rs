//! The `loop` variable.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::{List, Value};
use crate::template::fault::{Fault, Res};
use crate::template::meter::Charge;
use crate::template::syntax::ast::For;

#[derive(Debug)]
pub(in super::super) struct Loop {
    pub definition: Arc<For>,
    pub items: List,
    /// The index of the item, from 0.
    pub index: Cell<usize>,
    /// The depth of the loop, from 0; larger in a recursive loop.
    pub depth: usize,
    changed: RefCell<Option<List>>,
    _charge: Charge,
}

impl Loop {
    pub(in super::super) const METHODS: &[&str] = &["cycle", "changed"];

    pub(in super::super) fn new(definition: Arc<For>, items: List, depth: usize) -> Res<Self> {
        let _charge = Charge::new(size_of::<Self>())?;
        Ok(Self { definition, items, index: Cell::new(0), depth, changed: RefCell::new(None), _charge })
    }

    pub(in super::super) fn attribute(&self, name: &str) -> Res<Option<Value>> {
        let (index, length) = (self.index.get(), self.items.items().len());
        let item = |at: Option<usize>, what: &str| {
            at.and_then(|at| self.items.items().get(at).cloned()).map_or_else(|| Value::undefined(what), Ok)
        };
        Ok(Some(match name {
            "index" => Value::Int(index as i128 + 1),
            "index0" => Value::Int(index as i128),
            "revindex" => Value::Int(length as i128 - index as i128),
            "revindex0" => Value::Int(length as i128 - index as i128 - 1),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == length),
            "length" => Value::Int(length as i128),
            "depth" => Value::Int(self.depth as i128 + 1),
            "depth0" => Value::Int(self.depth as i128),
            "previtem" => item(index.checked_sub(1), "loop.previtem")?,
            "nextitem" => item(index.checked_add(1), "loop.nextitem")?,
            _ => return Ok(None),
        }))
    }

    /// Returns one of the values, in turn.
    pub(in super::super) fn cycle(&self, values: &[Value]) -> Res<Value> {
        let at = self.index.get().checked_rem(values.len());
        at.map(|at| values[at].clone()).ok_or_else(|| Fault::new("loop.cycle: no items to cycle through"))
    }

    /// True if the values differ from those of the last call.
    pub(in super::super) fn changed(&self, values: Vec<Value>) -> Res<Value> {
        let mut same = false;
        let values = List::new(values)?;
        if let Some(last) = &*self.changed.borrow() {
            same = last.items().len() == values.items().len();
            for (last, now) in last.items().iter().zip(values.items().iter()) {
                same = same && last.equals(now)?;
            }
        }
        self.changed.replace(Some(values));
        Ok(Value::Bool(!same))
    }
}
