//! Converts an engine's settings from Python and back: the `EngineSettings` of `rocmforge/settings.py`. Their names and
//! defaults are those of `config`.

use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::host::engine_args;
use super::logging::{flush, prepare};
use super::outputs::snapshots::speculation;
use super::values::arrays::{integer, name_of, optional_integer, real, seconds, switch, wrong_type};
use super::values::json::to_json;
use crate::config::{ComputeDtype, EngineArgs, KvCacheDtype, Platform, SETTINGS, Setting, SpeculativeConfig};
use crate::devices::{self, OpenDevice};

/// Returns arguments for an engine in this interpreter, with defaults for absent settings.
///
/// # Errors
/// `TypeError` for an unknown name or a value of a wrong type; `InvalidRequest` for a value out of its range.
pub(super) fn args_with(py: Python<'_>, model: PathBuf, given: Option<&Bound<'_, PyDict>>) -> PyResult<EngineArgs> {
    let mut args = engine_args(py, model)?;
    for (name, value) in given.into_iter().flatten() {
        let name = name.cast::<PyString>()?.to_str()?;
        let Some(&(name, place)) = SETTINGS.iter().find(|(known, _)| *known == name) else {
            return Err(PyTypeError::new_err(format!("got an unexpected keyword argument '{name}'")));
        };
        set(name, place(&mut args), &value)?;
    }
    // Last, because it must agree with the platform.
    if let Some(device) = given.map_or(Ok(None), |given| given.get_item(DEVICE))? {
        args.choose_device(DEVICE, &name_of(DEVICE, &device)?)?;
    }
    Ok(args)
}

const DEVICE: &str = "device";

/// `what` is the setting's name, for errors.
fn set(what: &'static str, setting: Setting<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let some = Some(value).filter(|value| !value.is_none());
    match setting {
        // `args_with` sets it after all others.
        Setting::Device(_) => {}
        Setting::Count(count) => *count = integer(what, value)?,
        Setting::OptionalCount(count) => *count = optional_integer(what, some)?,
        Setting::OptionalNumber(number) => *number = optional_integer(what, some)?,
        Setting::Switch(on) => *on = switch(what, value)?,
        Setting::OptionalSwitch(on) => *on = some.map(|on| switch(what, on)).transpose()?,
        Setting::Seconds(duration) => *duration = seconds(what, real(what, value)?)?,
        Setting::OptionalText(text) => *text = some.map(|text| name_of(what, text)).transpose()?,
        Setting::OptionalFile(path) => *path = some.map(|path| file(what, path)).transpose()?,
        Setting::CacheType(dtype) => *dtype = KvCacheDtype::named(what, &name_of(what, value)?)?,
        Setting::ComputeType(dtype) => *dtype = ComputeDtype::named(what, &name_of(what, value)?)?,
        Setting::OptionalPlatform(platform) => {
            let name = some.map(|name| name_of(what, name)).transpose()?;
            *platform = name.map(|name| Platform::named(what, &name)).transpose()?;
        }
        Setting::Speculation(config) => *config = some.map(|config| speculative_config(what, config)).transpose()?,
    }
    Ok(())
}

fn speculative_config(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<SpeculativeConfig> {
    if !value.is_instance_of::<PyDict>() {
        return Err(wrong_type(what, value, "a dictionary"));
    }
    Ok(SpeculativeConfig::from_json(what, &to_json(what, value)?.to_string())?)
}

fn file(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    value.extract::<PathBuf>().map_err(|_| wrong_type(what, value, "a path"))
}

/// True if an engine with these settings would use a GPU. Opens the driver.
///
/// # Errors
/// `DeviceError` if the settings request a GPU that is not usable.
#[pyfunction]
#[pyo3(signature = (**settings))]
pub(super) fn uses_gpu(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<bool> {
    prepare(py)?;
    let args = args_with(py, PathBuf::new(), settings)?;
    let device = py.detach(|| devices::open(&args.with_env()?));
    flush(py);
    Ok(matches!(device?, OpenDevice::Gpu(_)))
}

/// Returns every setting with its default. `LLM` shows them as its arguments.
#[pyfunction]
pub(super) fn default_settings(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let mut args = EngineArgs::new("");
    let settings = PyDict::new(py);
    for (name, place) in SETTINGS {
        match place(&mut args) {
            Setting::Device(args) => settings.set_item(name, args.device.name()),
            Setting::Count(count) => settings.set_item(name, *count),
            Setting::OptionalCount(count) => settings.set_item(name, *count),
            Setting::OptionalNumber(number) => settings.set_item(name, *number),
            Setting::Switch(on) => settings.set_item(name, *on),
            Setting::OptionalSwitch(on) => settings.set_item(name, *on),
            Setting::Seconds(duration) => settings.set_item(name, duration.as_secs_f64()),
            Setting::OptionalText(text) => settings.set_item(name, text.as_deref()),
            Setting::OptionalFile(path) => settings.set_item(name, path.as_deref()),
            Setting::CacheType(dtype) => settings.set_item(name, dtype.name()),
            Setting::ComputeType(dtype) => settings.set_item(name, dtype.name()),
            Setting::OptionalPlatform(platform) => settings.set_item(name, platform.map(Platform::name)),
            Setting::Speculation(config) => settings.set_item(name, config.as_ref().map(speculation)),
        }?;
    }
    Ok(settings)
}
