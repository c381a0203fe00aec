//! Chooses one of several devices, and says what the others are.

use std::fmt::Write;
use std::path::PathBuf;

use super::{Unopened, survey};
use crate::config::{GpuOptions, Platform};

/// A device as its platform's driver counts it; it was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub index: u32,
    pub name: String,
    pub arch: String,
    /// Whether it is part of a processor.
    pub integrated: bool,
}

impl Listed {
    /// The device's name in messages.
    pub fn label(&self) -> String {
        let kind = if self.integrated { ", integrated" } else { "" };
        format!("gpu:{} ({}, {}{kind})", self.index, self.name, self.arch)
    }
}

/// The devices that the driver of a platform has.
pub struct Survey {
    pub platform: Platform,
    /// The driver's library with its devices, or why it cannot be used.
    pub devices: Result<(PathBuf, Vec<Listed>), String>,
}

/// The device that was asked for; without a wish the first that is not part of a processor, since that one is faster
/// and has memory of its own, else the first.
pub(super) fn choose(asked: Option<u32>, devices: &[Listed]) -> Result<u32, Unopened> {
    let Some(index) = asked else {
        let chosen = devices.iter().find(|device| !device.integrated).or(devices.first());
        return chosen.map(|device| device.index).ok_or_else(|| Unopened::Unusable("it has no device".to_owned()));
    };
    match devices.iter().find(|device| device.index == index) {
        Some(device) => Ok(device.index),
        None if devices.is_empty() => Err(Unopened::Unusable("it has no device".to_owned())),
        None => Err(Unopened::NoSuchIndex(format!("there is no device {index}; there are {}", labels(devices)))),
    }
}

fn labels(devices: &[Listed]) -> String {
    devices.iter().map(Listed::label).collect::<Vec<_>>().join(", ")
}

/// The message where no platform gave a device; `tried` is what was wrong with each.
pub(super) fn no_device(options: &GpuOptions, tried: &str) -> String {
    let mut text = format!("no usable GPU ({tried}); ");
    // A platform that was named may be the wrong one.
    let others = match options.platform {
        Some(Platform::Amd) => survey(&GpuOptions { platform: Some(Platform::Nvidia), ..options.clone() }),
        Some(Platform::Nvidia) => survey(&GpuOptions { platform: Some(Platform::Amd), ..options.clone() }),
        None => Vec::new(),
    };
    for Survey { platform, devices } in others {
        if let Ok((_, devices)) = devices
            && !devices.is_empty()
        {
            // Writing to a text does not fail.
            let _ = write!(text, "found instead, of platform {}: {}; ", platform.name(), labels(&devices));
        }
    }
    if options.platform != Some(Platform::Nvidia) {
        text += "for AMD install rocm-hip-runtime, or set ROCMFORGE_GPU_LIBRARY to the path of libamdhip64.so; ";
    }
    text + "use device=\"cpu\" to run without a GPU"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(integrated: &[bool]) -> Vec<Listed> {
        let device = |(index, &integrated): (usize, &bool)| Listed {
            index: index as u32,
            name: format!("card {index}"),
            arch: "gfx1100".to_owned(),
            integrated,
        };
        integrated.iter().enumerate().map(device).collect()
    }

    #[test]
    fn a_card_is_preferred_to_a_part_of_the_processor() {
        let chosen = |asked, integrated: &[bool]| choose(asked, &devices(integrated)).ok();
        assert_eq!(chosen(None, &[true, false, false]), Some(1));
        assert_eq!(chosen(None, &[false, true]), Some(0));
        assert_eq!(chosen(None, &[true, true]), Some(0));
        assert_eq!(chosen(None, &[]), None);
        // An integrated device that is asked for is taken.
        assert_eq!(chosen(Some(0), &[true, false]), Some(0));
        assert_eq!(chosen(Some(2), &[true, false]), None);
    }

    #[test]
    fn an_index_out_of_range_lists_the_devices() {
        let Err(Unopened::NoSuchIndex(problem)) = choose(Some(2), &devices(&[true, false])) else { panic!() };
        let expected = "there is no device 2; there are gpu:0 (card 0, gfx1100, integrated), gpu:1 (card 1, gfx1100)";
        assert_eq!(problem, expected);
    }
}
