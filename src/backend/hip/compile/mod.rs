//! From kernel sources to code that the device loads.

pub mod plan;

use plan::Unit;

use super::driver::DeviceProperties;
use crate::config::HipOptions;
use crate::{Error, Result};

/// How the code of a unit came about.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// Compiled with this library, for exactly this GPU.
    Embedded { target: String },
    /// Compiled with this library, for a family of GPUs.
    Generic { target: String },
    /// Compiled on this machine just now.
    Compiled { compiler: String, seconds: f64 },
    /// Compiled on this machine earlier.
    Cached { compiler: String },
}

/// Code for the device, and where it came from.
pub struct CodeObject {
    pub image: Vec<u8>,
    pub origin: Origin,
}

/// Where the code of kernels comes from for one device.
pub struct Compiler {
    properties: DeviceProperties,
    options: HipOptions,
}

impl Compiler {
    pub fn new(properties: &DeviceProperties, options: &HipOptions) -> Self {
        Self { properties: properties.clone(), options: options.clone() }
    }

    pub fn code_object(&self, unit: Unit) -> Result<CodeObject> {
        let problem = format!("no code for {} ({:?})", unit.name(), self.options.platform);
        Err(Error::Device { device: self.properties.arch.clone(), problem })
    }
}
