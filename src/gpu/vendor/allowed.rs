//! The GPUs on which the vendor's matrix library is used, as data; each line names its source.

use crate::DeviceProperties;
use crate::config::Platform;

/// Architecture, the first HIP version whose hipBLASLt supports it, and the source.
const ALLOWED: [(&str, (u32, u32), &str); 5] = [
    ("gfx90a", (6, 0), "hipBLASLt's change log: from its first release on"),
    ("gfx942", (6, 0), "pytorch/pytorch, list of supported architectures: without a condition on the version"),
    ("gfx950", (7, 0), "pytorch/pytorch#172791: ROCm 7.0"),
    ("gfx1100", (6, 3), "ROCm/pytorch#2742: ROCm 6.3; ROCm/pytorch#3317: tuned and through AMD's own tests"),
    ("gfx1101", (6, 3), "as gfx1100"),
];

/// Architectures that others also list, with the problems reported of them, all before `TRIED`. The library has no code
/// for any other architecture.
const REPORTED: [(&str, &str); 7] = [
    ("gfx908", "nobody reports that it works"),
    ("gfx1102", "ROCm/legacy-rocm-build#6082: every product is refused"),
    ("gfx1103", "ROCm/legacy-rocm-build#4440: not supported in common builds"),
    ("gfx1150", "its kernels are copies of another GPU's, ROCm/pytorch#2582"),
    ("gfx1151", "npatsakula/svod#108: illegal memory accesses"),
    ("gfx1200", "ROCm/rocm-libraries#5205: crashes"),
    ("gfx1201", "ROCm/rocm-libraries#5706: wrong results without an error"),
];

/// The first HIP version with which the trial alone decides on the architectures of `REPORTED`. It runs in a process of
/// its own and checks the whole result of every shape, so it finds crashes and wrong results.
const TRIED: (u32, u32) = (7, 14);

/// Says if the library is trusted enough on this GPU to be tested; the error is the reason why not.
pub(super) fn check(properties: &DeviceProperties) -> Result<(), String> {
    // Many programs check cuBLASLt's results, on the GPUs of every generation since Ampere.
    if properties.platform == Platform::Nvidia {
        return Ok(());
    }
    let arch = &properties.arch;
    let advice = "vendor_blas=True or ROCMFORGE_VENDOR_BLAS=1 tries it all the same";
    if let Some((_, least, _)) = ALLOWED.iter().find(|(name, ..)| name == arch) {
        let (major, minor) = properties.driver_version;
        return match properties.driver_version >= *least {
            true => Ok(()),
            false => Err(format!(
                "hipBLASLt supports {arch} from HIP {}.{} on, this is {major}.{minor}; {advice}",
                least.0, least.1
            )),
        };
    }
    match REPORTED.iter().find(|(name, _)| name == arch) {
        Some(_) if properties.driver_version >= TRIED => Ok(()),
        Some((_, why)) => {
            Err(format!("hipBLASLt is not trusted on {arch} before HIP {}.{} ({why}); {advice}", TRIED.0, TRIED.1))
        }
        None => Err(format!("hipBLASLt has no code for {arch}; {advice}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::fake;

    fn allowed(arch: &str, driver_version: (u32, u32)) -> Result<(), String> {
        check(&DeviceProperties { arch: arch.to_owned(), driver_version, ..fake::properties() })
    }

    #[test]
    fn architectures_are_allowed_from_a_version_on() {
        for arch in ["gfx90a", "gfx942"] {
            assert_eq!(allowed(arch, (6, 0)), Ok(()));
        }
        assert_eq!(allowed("gfx1100", (6, 3)), Ok(()));
        assert_eq!(allowed("gfx1100", (7, 0)), Ok(()));
        let error = allowed("gfx1100", (6, 2)).unwrap_err();
        assert!(error.contains("from HIP 6.3 on, this is 6.2") && error.contains("ROCMFORGE_VENDOR_BLAS=1"), "{error}");
        assert!(allowed("gfx950", (6, 4)).is_err());
        for arch in ["gfx906", "gfx1030", "gfx1102", "gfx1151", "gfx1200", "gfx1201", "cpu-wave32"] {
            let error = allowed(arch, (7, 13)).unwrap_err();
            assert!(error.contains(arch), "{error}");
        }
        for (arch, _) in REPORTED {
            assert_eq!(allowed(arch, (7, 14)), Ok(()), "{arch}");
            assert_eq!(allowed(arch, (10, 0)), Ok(()), "{arch}");
        }
        assert!(allowed("gfx1030", (10, 0)).is_err());
        let nvidia = DeviceProperties { platform: Platform::Nvidia, arch: "sm_90".to_owned(), ..fake::properties() };
        assert_eq!(check(&nvidia), Ok(()));
    }
}
