//! Values that a template can call.

use std::cell::Cell;
use std::sync::Arc;

use super::scope::Scope;
use super::{List, Value};
use crate::template::meter::Charge;
use crate::template::syntax::ast::Macro;
use crate::template::text::Text;

#[derive(Debug)]
pub(in super::super) enum Callable {
    /// A global function.
    Function(&'static str),
    Method {
        receiver: Value,
        name: &'static str,
    },
    /// Sees the scopes around its definition, and not those of the caller. The body of `{% call %}` is a macro, too.
    Macro {
        definition: Arc<Macro>,
        scopes: Vec<Scope>,
        _charge: Charge,
    },
    Cycler {
        items: List,
        at: Cell<usize>,
    },
    Joiner {
        separator: Text,
        used: Cell<bool>,
    },
}
