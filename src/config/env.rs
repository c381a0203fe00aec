//! Environment variables that replace arguments that were not given. An argument always wins. An invalid variable is an
//! error and never ignored.

use std::env::VarError;

use super::gpu::{HIDES_GPUS, RENAMES_GPUS, switch};
use super::{DeviceKind, EngineArgs, LogLevel, SpeculativeConfig};
use crate::{Error, Result};

impl EngineArgs {
    /// Applies `ROCMFORGE_DEVICE` (a name for `choose_device`), `ROCMFORGE_NUM_THREADS`, and the variables that the
    /// fields of `EngineArgs` and `GpuOptions` name. `ROCMFORGE_LOG` is checked.
    ///
    /// # Errors
    /// `InvalidRequest` naming the variable and its valid values.
    pub fn with_env(self) -> Result<Self> {
        self.with_variables(|name| std::env::var(name))
    }

    /// Sets the device of `ROCMFORGE_DEVICE` if no device was chosen. Returns its name, if any.
    ///
    /// # Errors
    /// The errors of `choose_device`.
    pub fn choose_device_of_env(&mut self) -> Result<Option<String>> {
        self.choose_device_of(|name| std::env::var(name))
    }

    fn choose_device_of(
        &mut self,
        read: impl Fn(&str) -> std::result::Result<String, VarError>,
    ) -> Result<Option<String>> {
        const NAME: &str = "ROCMFORGE_DEVICE";
        if self.device != DeviceKind::Auto {
            return Ok(None);
        }
        let device = text(read, NAME)?;
        if let Some(device) = &device {
            self.choose_device(NAME, device)?;
        }
        Ok(device)
    }

    fn with_variables(mut self, read: impl Fn(&str) -> std::result::Result<String, VarError>) -> Result<Self> {
        self.choose_device_of(&read)?;
        if self.num_threads.is_none()
            && let Some(value) = text(&read, "ROCMFORGE_NUM_THREADS")?
        {
            let threads = value.parse();
            self.num_threads = Some(threads.map_err(|_| Error::invalid("ROCMFORGE_NUM_THREADS", value, "a number"))?);
        }
        if self.cpu_isa.is_none() {
            self.cpu_isa = text(&read, "ROCMFORGE_CPU_ISA")?;
        }
        if self.batch_invariant.is_none() {
            self.batch_invariant = switch(|name| text(&read, name), "ROCMFORGE_BATCH_INVARIANT")?;
        }
        if self.speculative_config.is_none() {
            const NAME: &str = "ROCMFORGE_SPECULATIVE_CONFIG";
            let config = text(&read, NAME)?.map(|text| SpeculativeConfig::from_json(NAME, &text));
            self.speculative_config = config.transpose()?;
        }
        if self.self_test.is_none() {
            self.self_test = switch(|name| text(&read, name), "ROCMFORGE_SELF_TEST")?;
        }
        self.gpu.batch_invariant = self.batch_invariant.unwrap_or(self.gpu.batch_invariant);
        self.gpu.self_test = self.self_test.unwrap_or(self.gpu.self_test);
        log_level_of(&read)?;
        self.gpu.fill_in(|name| text(&read, name))?;
        self.gpu.driver_variables = driver_variables(&read);
        Ok(self)
    }
}

/// Returns the variables of AMD's libraries that are set. An empty one counts: it hides every GPU.
fn driver_variables(read: impl Fn(&str) -> std::result::Result<String, VarError>) -> Vec<(&'static str, String)> {
    let value = |name| match read(name) {
        Ok(value) => Some(value),
        Err(VarError::NotUnicode(value)) => Some(value.to_string_lossy().into_owned()),
        Err(VarError::NotPresent) => None,
    };
    HIDES_GPUS.into_iter().chain([RENAMES_GPUS]).filter_map(|name| Some((name, value(name)?))).collect()
}

/// Returns the log level of `ROCMFORGE_LOG`.
///
/// # Errors
/// `InvalidRequest` for an unknown level.
pub fn log_level() -> Result<Option<LogLevel>> {
    log_level_of(|name| std::env::var(name))
}

fn log_level_of(read: impl Fn(&str) -> std::result::Result<String, VarError>) -> Result<Option<LogLevel>> {
    const NAME: &str = "ROCMFORGE_LOG";
    text(read, NAME)?.map(|value| LogLevel::named(NAME, &value)).transpose()
}

fn text(read: impl Fn(&str) -> std::result::Result<String, VarError>, name: &'static str) -> Result<Option<String>> {
    match read(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Error::invalid(name, "bytes that are not UTF-8", "text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)], args: EngineArgs) -> Result<EngineArgs> {
        args.with_variables(|name| {
            let value = variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_string());
            value.ok_or(VarError::NotPresent)
        })
    }

    #[test]
    fn variables_fill_in_and_arguments_win() {
        let set = [("ROCMFORGE_DEVICE", "cpu"), ("ROCMFORGE_NUM_THREADS", "3"), ("ROCMFORGE_CPU_ISA", "scalar")];
        let args = with(&set, EngineArgs::new("m")).unwrap();
        assert_eq!((args.device, args.num_threads), (DeviceKind::Cpu, Some(3)));
        assert_eq!(args.cpu_isa.as_deref(), Some("scalar"));
        let set_json = [("ROCMFORGE_SPECULATIVE_CONFIG", r#"{"num_speculative_tokens": 3}"#)];
        let tokens = |args| with(&set_json, args).unwrap().speculative_config.unwrap().num_speculative_tokens;
        assert_eq!(tokens(EngineArgs::new("m")), 3);
        let given = EngineArgs { speculative_config: Some(SpeculativeConfig::default()), ..EngineArgs::new("m") };
        assert_eq!(tokens(given), 8);
        let given = EngineArgs { device: DeviceKind::Gpu, num_threads: Some(8), ..EngineArgs::new("m") };
        let args = with(&set, given).unwrap();
        assert_eq!((args.device, args.num_threads), (DeviceKind::Gpu, Some(8)));
        let args = with(&[("ROCMFORGE_DEVICE", "")], EngineArgs::new("m")).unwrap();
        assert_eq!((args.device, args.num_threads), (DeviceKind::Auto, None));
        let args = with(&[("ROCMFORGE_DEVICE", "gpu:1")], EngineArgs::new("m")).unwrap();
        assert_eq!((args.device, args.gpu.device_index), (DeviceKind::Gpu, Some(1)));
    }

    #[test]
    fn switches_of_the_backend_are_as_the_argument_says_else_the_variable() {
        let set = [("ROCMFORGE_BATCH_INVARIANT", "1"), ("ROCMFORGE_SELF_TEST", "0")];
        let resolved = |variables: &[(&str, &str)], args| {
            let args = with(variables, args).unwrap();
            (args.gpu.batch_invariant, args.gpu.self_test)
        };
        assert_eq!(resolved(&[], EngineArgs::new("m")), (false, true));
        assert_eq!(resolved(&set, EngineArgs::new("m")), (true, false));
        let given = EngineArgs { batch_invariant: Some(false), self_test: Some(true), ..EngineArgs::new("m") };
        assert_eq!(resolved(&set, given.clone()), (false, true));
        assert_eq!(resolved(&[], given), (false, true));
        assert!(with(&[("ROCMFORGE_SELF_TEST", "no")], EngineArgs::new("m")).is_err());
    }

    /// They are told as they are: an empty list of devices is one that hides them all.
    #[test]
    fn variables_of_the_driver_are_kept() {
        let set = [("HIP_VISIBLE_DEVICES", ""), ("HSA_OVERRIDE_GFX_VERSION", "11.0.0"), ("HIP_PLATFORM", "amd")];
        let found = with(&set, EngineArgs::new("m")).unwrap().gpu.driver_variables;
        let expected = [("HIP_VISIBLE_DEVICES", ""), ("HSA_OVERRIDE_GFX_VERSION", "11.0.0")];
        assert_eq!(found, expected.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(with(&[], EngineArgs::new("m")).unwrap().gpu.driver_variables, []);
    }

    #[test]
    fn a_bad_variable_is_an_error_that_names_it() {
        for (name, value) in [
            ("ROCMFORGE_DEVICE", "tpu"),
            ("ROCMFORGE_NUM_THREADS", "-1"),
            ("ROCMFORGE_NUM_THREADS", "x"),
            ("ROCMFORGE_LOG", "loud"),
            ("ROCMFORGE_SPECULATIVE_CONFIG", "ngram"),
        ] {
            let error = with(&[(name, value)], EngineArgs::new("m")).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
