//! Chooses one of several devices, and describes the others.

use std::fmt::Write;
use std::path::PathBuf;

use super::{Unopened, library_fails_probe, survey};
use crate::config::{GpuOptions, Platform};

/// A device in its platform's driver; it was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub index: u32,
    pub name: String,
    pub arch: String,
    /// True if it is part of a processor.
    pub integrated: bool,
    /// Bytes of its memory.
    pub memory: u64,
}

impl Listed {
    /// Returns the device's name in messages.
    pub fn label(&self) -> String {
        let kind = if self.integrated { ", integrated" } else { "" };
        let Self { index, name, arch, .. } = self;
        format!("gpu:{index} ({name}, {arch}, {:.1} GB{kind})", self.memory as f64 / 1e9)
    }
}

/// The devices of a platform's driver.
pub struct Survey {
    pub platform: Platform,
    /// The driver's library with its devices, or the reason why it cannot be used.
    pub devices: Result<(PathBuf, Vec<Listed>), String>,
}

/// Returns the requested device. Without a request it is the discrete device with the most memory, since discrete
/// devices are faster and have separate memory. Without one of these it is the first device.
pub(super) fn choose(asked: Option<u32>, devices: &[Listed]) -> Result<u32, Unopened> {
    let Some(index) = asked else {
        // `max_by_key` returns the last of equal ones, so the order is reversed.
        let cards = devices.iter().rev().filter(|device| !device.integrated);
        let chosen = cards.max_by_key(|device| device.memory).or(devices.first());
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

/// Returns the message if no platform has a device; `tried` contains the problem of each.
pub(super) fn no_device(options: &GpuOptions, tried: &str) -> String {
    let mut text = format!("no usable GPU ({tried}); ");
    // The named platform may be the wrong one.
    let others = match options.platform {
        Some(Platform::Amd) if library_fails_probe(options) => Vec::new(),
        Some(Platform::Amd) => survey(&GpuOptions { platform: Some(Platform::Nvidia), ..options.clone() }),
        Some(Platform::Nvidia) => survey(&GpuOptions { platform: Some(Platform::Amd), ..options.clone() }),
        None => Vec::new(),
    };
    for Survey { platform, devices } in others {
        if let Ok((_, devices)) = devices
            && !devices.is_empty()
        {
            // Writing to a `String` does not fail.
            let _ = write!(text, "found instead, of platform {}: {}; ", platform.name(), labels(&devices));
        }
    }
    text + "use device=\"cpu\" to run without a GPU"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: usize, integrated: bool, memory: u64) -> Listed {
        let (name, arch) = (format!("card {index}"), "gfx1100".to_owned());
        Listed { index: index as u32, name, arch, integrated, memory }
    }

    fn devices(integrated: &[bool]) -> Vec<Listed> {
        let device = |(index, &integrated): (usize, &bool)| device(index, integrated, 8_000_000_000);
        integrated.iter().enumerate().map(device).collect()
    }

    #[test]
    fn a_card_is_preferred_to_a_part_of_the_processor() {
        let chosen = |asked, integrated: &[bool]| choose(asked, &devices(integrated)).ok();
        assert_eq!(chosen(None, &[true, false, false]), Some(1));
        assert_eq!(chosen(None, &[false, true]), Some(0));
        assert_eq!(chosen(None, &[true, true]), Some(0));
        assert_eq!(chosen(None, &[]), None);
        // An integrated device is chosen on request.
        assert_eq!(chosen(Some(0), &[true, false]), Some(0));
        assert_eq!(chosen(Some(2), &[true, false]), None);
    }

    #[test]
    fn the_card_with_most_memory_is_taken() {
        let chosen = |sizes: &[(bool, u64)]| {
            let devices: Vec<_> = sizes
                .iter()
                .enumerate()
                .map(|(index, &(integrated, memory))| device(index, integrated, memory))
                .collect();
            choose(None, &devices).ok()
        };
        assert_eq!(chosen(&[(false, 4), (false, 24)]), Some(1));
        assert_eq!(chosen(&[(false, 24), (false, 4), (false, 24)]), Some(0));
        // A processor's device may report all of the machine's memory.
        assert_eq!(chosen(&[(true, 96), (false, 8), (false, 12)]), Some(2));
        assert_eq!(chosen(&[(true, 8), (true, 96)]), Some(0));
    }

    #[test]
    fn an_index_out_of_range_lists_the_devices() {
        let Err(Unopened::NoSuchIndex(problem)) = choose(Some(2), &devices(&[true, false])) else { panic!() };
        let expected = "there is no device 2; there are gpu:0 (card 0, gfx1100, 8.0 GB, integrated), \
                        gpu:1 (card 1, gfx1100, 8.0 GB)";
        assert_eq!(problem, expected);
    }
}
