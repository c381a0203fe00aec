//! Devices by the names that users give them.

use super::{DeviceKind, EngineArgs, Platform};
use crate::{Error, Result};

const EXPECTED: &str = "auto, cpu, hip, gpu, rocm or cuda, the last four also with the number of a device, as in hip:1";

impl EngineArgs {
    /// Takes a device by its name. `hip` and `gpu` are a GPU of either platform, `rocm` is one of AMD's, `cuda` one of
    /// NVIDIA's; `:1` behind any of them is the second one that the platform's driver counts. `what` names the
    /// argument in an error.
    ///
    /// # Errors
    /// `InvalidRequest` for any other name.
    pub fn choose_device(&mut self, what: &'static str, name: &str) -> Result<()> {
        let (kind, index) = match name.split_once(':') {
            None => (name, None),
            // Only digits: `parse` would take a sign too.
            Some((kind, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                (kind, Some(digits.parse().map_err(|_| Error::invalid(what, name, EXPECTED))?))
            }
            Some(_) => return Err(Error::invalid(what, name, EXPECTED)),
        };
        let (device, platform) = match kind {
            "auto" if index.is_none() => (DeviceKind::Auto, None),
            "cpu" if index.is_none() => (DeviceKind::Cpu, None),
            "hip" | "gpu" => (DeviceKind::Gpu, None),
            "rocm" => (DeviceKind::Gpu, Some(Platform::Amd)),
            "cuda" => (DeviceKind::Gpu, Some(Platform::Nvidia)),
            _ => return Err(Error::invalid(what, name, EXPECTED)),
        };
        self.device = device;
        self.gpu.device_index = index.or(self.gpu.device_index);
        self.gpu.platform = platform.or(self.gpu.platform);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(name: &str) -> Result<(DeviceKind, Option<Platform>, Option<u32>)> {
        let mut args = EngineArgs::new("m");
        args.choose_device("device", name)?;
        Ok((args.device, args.gpu.platform, args.gpu.device_index))
    }

    #[test]
    fn a_name_is_a_kind_a_platform_and_an_index() {
        let names = [
            ("auto", (DeviceKind::Auto, None, None)),
            ("cpu", (DeviceKind::Cpu, None, None)),
            ("hip", (DeviceKind::Gpu, None, None)),
            ("hip:0", (DeviceKind::Gpu, None, Some(0))),
            ("hip:12", (DeviceKind::Gpu, None, Some(12))),
            ("gpu", (DeviceKind::Gpu, None, None)),
            ("gpu:1", (DeviceKind::Gpu, None, Some(1))),
            ("rocm", (DeviceKind::Gpu, Some(Platform::Amd), None)),
            ("rocm:3", (DeviceKind::Gpu, Some(Platform::Amd), Some(3))),
            ("cuda", (DeviceKind::Gpu, Some(Platform::Nvidia), None)),
            ("cuda:1", (DeviceKind::Gpu, Some(Platform::Nvidia), Some(1))),
        ];
        for (name, expected) in names {
            assert_eq!(chosen(name).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn other_names_are_errors_that_list_the_names() {
        for name in
            ["", "tpu", "HIP", "hip:", "hip:x", "hip:-1", "hip:+1", "hip:1:2", "cpu:0", "auto:1", "hip:4294967296"]
        {
            let error = chosen(name).unwrap_err().to_string();
            assert!(error.starts_with(&format!("device: got {name}, expected auto, cpu, hip")), "{error}");
        }
    }
}
