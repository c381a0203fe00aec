//! Device names, as users give them.

use super::{DeviceKind, EngineArgs, Platform};
use crate::{Error, Result};

const EXPECTED: &str = "auto, cpu, gpu, hip or rocm (AMD's), or cuda (NVIDIA's), the last four also with the number of a device, as in gpu:1";

impl EngineArgs {
    /// Sets the device by its name. `gpu` is a GPU of either platform, `hip` and `rocm` are an AMD GPU, `cuda` is an
    /// NVIDIA GPU. A suffix `:1` means the second device in the order of the platform's driver. `what` names the
    /// argument in an error. The platform in the name takes precedence over the environment's.
    ///
    /// # Errors
    /// `InvalidRequest` for any other name, and for one that contradicts the argument `gpu_platform`.
    pub fn choose_device(&mut self, what: &'static str, name: &str) -> Result<()> {
        let (kind, index) = match name.split_once(':') {
            None => (name, None),
            // Only digits are allowed, while `parse` would also accept a sign.
            Some((kind, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                (kind, Some(digits.parse().map_err(|_| Error::invalid(what, name, EXPECTED))?))
            }
            Some(_) => return Err(Error::invalid(what, name, EXPECTED)),
        };
        let (device, platform) = match kind {
            "auto" if index.is_none() => (DeviceKind::Auto, None),
            "cpu" if index.is_none() => (DeviceKind::Cpu, None),
            "gpu" => (DeviceKind::Gpu, None),
            "hip" | "rocm" => (DeviceKind::Gpu, Some(Platform::Amd)),
            "cuda" => (DeviceKind::Gpu, Some(Platform::Nvidia)),
            _ => return Err(Error::invalid(what, name, EXPECTED)),
        };
        if let (Some(said), Some(given)) = (platform, self.gpu.platform)
            && said != given
        {
            let expected = format!("a device of the platform {}, which gpu_platform says", given.name());
            return Err(Error::invalid(what, name, expected));
        }
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
            ("gpu", (DeviceKind::Gpu, None, None)),
            ("gpu:0", (DeviceKind::Gpu, None, Some(0))),
            ("gpu:12", (DeviceKind::Gpu, None, Some(12))),
            ("hip", (DeviceKind::Gpu, Some(Platform::Amd), None)),
            ("hip:1", (DeviceKind::Gpu, Some(Platform::Amd), Some(1))),
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
            ["", "tpu", "GPU", "gpu:", "gpu:x", "gpu:-1", "hip:+1", "gpu:1:2", "cpu:0", "auto:1", "gpu:4294967296"]
        {
            let error = chosen(name).unwrap_err().to_string();
            assert!(error.starts_with(&format!("device: got {name}, expected auto, cpu, gpu, hip")), "{error}");
        }
    }

    #[test]
    fn a_name_of_another_platform_than_the_argument_is_an_error() {
        let on = |platform, name: &str| {
            let mut args = EngineArgs::new("m");
            args.gpu.platform = Some(platform);
            args.choose_device("device", name).map(|()| args.gpu.platform)
        };
        assert_eq!(on(Platform::Amd, "gpu:1").unwrap(), Some(Platform::Amd));
        assert_eq!(on(Platform::Amd, "hip").unwrap(), Some(Platform::Amd));
        let error = on(Platform::Nvidia, "rocm").unwrap_err().to_string();
        assert!(error.contains("got rocm, expected a device of the platform nvidia"), "{error}");
    }
}
