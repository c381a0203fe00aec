//! Tests of draft tokens, whatever proposes them.

mod catch_up;
pub(super) mod draft_model;
pub(super) mod drafter;
pub(super) mod speculation;
