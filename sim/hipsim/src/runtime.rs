//! State of the process: its devices, and the current device of each thread.

use std::cell::Cell;
use std::sync::OnceLock;

use crate::device::Device;
use crate::log::say;
use crate::settings::Settings;
use crate::status::{Result, Status};

static DEVICES: OnceLock<std::result::Result<Vec<Device>, String>> = OnceLock::new();

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Returns the devices, which the first call creates.
pub(crate) fn devices() -> Result<&'static [Device]> {
    open(None)
}

/// Creates the devices of a list instead of those of `HIPSIM_TARGET`, if none exist yet.
pub(crate) fn open(list: Option<&str>) -> Result<&'static [Device]> {
    let devices = DEVICES.get_or_init(|| {
        let settings = Settings::read(list);
        if let Err(problem) = &settings {
            say(format_args!("{problem}"));
        }
        let settings = settings?;
        let device = |(index, device)| Device::new(index, device, &settings);
        Ok(settings.devices.iter().enumerate().map(device).collect())
    });
    devices.as_deref().map_err(|_| Status::NO_DEVICE)
}

pub(crate) fn device(index: usize) -> Result<&'static Device> {
    devices()?.get(index).ok_or(Status::INVALID_DEVICE)
}

/// Returns the device of an index of a program.
pub(crate) fn device_of(index: i32) -> Result<&'static Device> {
    device(usize::try_from(index).map_err(|_| Status::INVALID_DEVICE)?)
}

pub(crate) fn current() -> Result<&'static Device> {
    device(CURRENT.get())
}

pub(crate) fn set_current(index: i32) -> Result<()> {
    CURRENT.set(device_of(index)?.index);
    Ok(())
}
