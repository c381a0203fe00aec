//! `Image`: a picture for a prompt.

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::pixels::{DecodeLimits, Picture};

/// The arguments of `Image.from_rgb`.
type Pixels<'py> = (usize, usize, Bound<'py, PyBytes>);

/// A decoded picture of 8-bit RGB pixels. Immutable.
#[pyclass(frozen, weakref, name = "Image", module = "rocmforge._rocmforge")]
pub(in crate::python) struct PyImage(Arc<Picture>);

impl PyImage {
    pub(in crate::python) fn picture(&self) -> &Picture {
        &self.0
    }
}

pub(in crate::python) fn pictures(images: &[Bound<'_, PyImage>]) -> Vec<Arc<Picture>> {
    images.iter().map(|image| Arc::clone(&image.get().0)).collect()
}

#[pymethods]
impl PyImage {
    /// Decodes a PNG, JPEG, WebP or GIF file.
    #[new]
    #[pyo3(signature = (data, *, max_bytes=DecodeLimits::MAX_BYTES, max_pixels=DecodeLimits::MAX_PIXELS))]
    fn new(py: Python<'_>, data: PyBuffer<u8>, max_bytes: usize, max_pixels: u64) -> PyResult<Self> {
        let limits = DecodeLimits { max_bytes, max_pixels };
        let data = data.to_vec(py)?;
        Ok(Self(Arc::new(py.detach(|| Picture::decode(&data, limits))?)))
    }

    /// Returns an image of 8-bit RGB pixels, row by row.
    #[staticmethod]
    fn from_rgb(py: Python<'_>, width: usize, height: usize, rgb: PyBuffer<u8>) -> PyResult<Self> {
        let rgb = rgb.to_vec(py)?;
        Ok(Self(Arc::new(py.detach(|| Picture::from_rgb(width, height, rgb))?)))
    }

    #[getter]
    fn width(&self) -> usize {
        self.0.width()
    }

    #[getter]
    fn height(&self) -> usize {
        self.0.height()
    }

    /// Returns the 8-bit RGB pixels, row by row.
    fn rgb<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.rgb())
    }

    /// Pickles the image by its pixels.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Pixels<'py>)> {
        let (class, image): (Bound<'py, PyType>, _) = (slf.get_type(), slf.get());
        Ok((class.getattr("from_rgb")?, (image.width(), image.height(), image.rgb(slf.py()))))
    }

    fn __repr__(&self) -> String {
        format!("Image(width={}, height={})", self.width(), self.height())
    }
}
