//! Values that cross between Python and Rust.

pub(super) mod arrays;
pub(super) mod body;
pub(super) mod image;
pub(super) mod json;
