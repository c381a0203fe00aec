//! The rows of pictures, which an encoder computes and a text model takes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::images::ImageId;

/// The rows that stand for a picture in a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRows {
    /// `[squares][output_size]`, part by part. In families with row ends, there is one more after each row of squares
    /// but the last.
    pub rows: Vec<f32>,
    /// Rows that are added after each of the first layers of the text model (DeepStack), one set per layer.
    pub deepstack: Vec<Vec<f32>>,
}

impl ImageRows {
    /// Appends the rows of the next part of the picture.
    pub(super) fn append(&mut self, part: Self) {
        self.rows.extend(part.rows);
        self.deepstack.iter_mut().zip(part.deepstack).for_each(|(rows, part)| rows.extend(part));
    }

    /// Returns the bytes of all rows.
    pub fn bytes(&self) -> usize {
        size_of::<f32>() * (self.rows.len() + self.deepstack.iter().map(Vec::len).sum::<usize>())
    }
}

/// The rows of the images of all running sequences.
pub type Images = HashMap<ImageId, Arc<ImageRows>>;
