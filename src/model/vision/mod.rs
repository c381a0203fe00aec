//! Image encoders: files beside a text model (`mmproj`) that compute rows of its prompts from pictures.
//!
//! - `family` names the families of encoders, and `families` reads the keys of their files.
//! - `spec` describes an encoder, and `tensors` defines its tensors.
//! - `projector` finds the file that goes with a text model.
//! - `layout` orders the patches of a picture.
//! - `encoder` is the forward pass over any `Backend`, and `rows` its results.

mod encoder;
mod families;
mod family;
mod layout;
mod projector;
mod rows;
mod spec;
mod tensors;

#[cfg(test)]
pub(super) mod tests;

pub use encoder::{Encoder, ImageEncoder, limits};
pub use family::{Family, PartTexts, TokenTexts};
pub use projector::{find_projector, open_projector};
pub use rows::{ImageRows, Images};
pub use spec::{MOST_IMAGE_ROWS, VisionSpec, Windows};
pub use tensors::VisionTensors;
