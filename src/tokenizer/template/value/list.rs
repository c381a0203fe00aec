//! Lists, which templates can change, and tuples.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use super::{OVERHEAD, Value, depth_above};
use crate::template::fault::{Fault, Res};
use crate::template::meter::{self, Charge};

/// The least depth that a new list counts with. A list always counts with more depth than each of its items. So no list
/// contains itself, and the stack for walking lists stays bounded. What is inserted later has to count with less first.
pub(super) const ROOM: usize = 64;

#[derive(Debug, Clone)]
pub(in super::super) struct List(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    items: RefCell<Items>,
    /// The names of a tuple's first items, if they are attributes as well.
    names: &'static [&'static str],
    depth: Cell<usize>,
    is_kept: Cell<bool>,
}

#[derive(Debug)]
struct Items {
    values: Vec<Value>,
    charge: Charge,
}

impl List {
    pub(in super::super) fn new(items: Vec<Value>) -> Res<Self> {
        Self::named(items, &[])
    }

    /// Returns a tuple whose first items have names.
    pub(in super::super) fn named(values: Vec<Value>, names: &'static [&'static str]) -> Res<Self> {
        let depth = Cell::new(depth_above(values.iter())?.max(ROOM));
        let charge = Charge::new(OVERHEAD + values.len() * size_of::<Value>())?;
        let items = RefCell::new(Items { values, charge });
        Ok(Self(Rc::new(Shared { items, names, depth, is_kept: Cell::new(false) })))
    }

    pub(in super::super) fn items(&self) -> Ref<'_, [Value]> {
        Ref::map(self.0.items.borrow(), |items| items.values.as_slice())
    }

    pub(in super::super) fn attribute(&self, name: &str) -> Option<Value> {
        let at = self.0.names.iter().position(|known| *known == name)?;
        self.items().get(at).cloned()
    }

    pub(super) fn depth(&self) -> usize {
        self.0.depth.get()
    }

    pub(super) fn set_depth(&self, depth: usize) {
        self.0.depth.set(depth);
    }

    /// Inserts values at a place; those behind it move.
    pub(in super::super) fn insert(&self, at: usize, values: Vec<Value>) -> Res<()> {
        for value in &values {
            value.fit(self.depth() - 1, self)?;
        }
        self.change(|items| {
            meter::work((items.values.len() - at) * size_of::<Value>())?;
            let (held, room) = (items.values.len(), items.values.capacity());
            if held + values.len() > room {
                let more = (held + values.len()).max(2 * held);
                items.charge.add((more - room) * size_of::<Value>())?;
                items.values.reserve_exact(more - held);
            }
            items.values.splice(at..at, values);
            Ok(())
        })
    }

    /// Removes the value at a place.
    pub(in super::super) fn remove(&self, at: usize) -> Res<Value> {
        self.change(|items| {
            meter::work((items.values.len() - at) * size_of::<Value>())?;
            Ok(items.values.remove(at))
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Items) -> Res<T>) -> Res<T> {
        let mut items = self.0.items.try_borrow_mut();
        let items = items.as_mut().map_err(|_| Fault::new("a list cannot change while a loop goes over it"))?;
        change(items)
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Marks the list as changed. True the first time: it may contain itself now, through a method or a loop.
    pub(in super::super) fn keep(&self) -> bool {
        !self.0.is_kept.replace(true)
    }

    /// Frees the values, which may contain this list.
    pub(in super::super) fn clear(&self) {
        let values = self.0.items.try_borrow_mut().map(|mut items| std::mem::take(&mut items.values));
        drop(values);
    }
}
