//! Encodings that change the operands of other instructions, or hold two of them.

pub(super) mod dpp;
pub(super) mod dual;
pub(super) mod sdwa;
