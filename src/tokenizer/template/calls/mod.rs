//! Functions, filters, methods and checks that templates call.

pub(super) mod checks;
mod filter_names;
pub(super) mod filters;
pub(super) mod functions;
mod json;
mod methods;
