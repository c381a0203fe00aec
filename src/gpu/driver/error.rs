//! A failed call of the driver, and its consequence for the engine.

use crate::Error;
use crate::sys::Status;

/// The consequence of a failure for all later calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    OutOfMemory,
    /// The context is lost with everything in it: no later call can succeed.
    DeviceLost,
    /// This call failed; others may succeed.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DriverError {
    /// The function, by the library's name.
    pub call: &'static str,
    pub code: i32,
    /// The library's name of the code and its explanation.
    pub text: String,
}

/// hipErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY.
pub(super) const OUT_OF_MEMORY: i32 = 2;
/// hipErrorNotReady, CUDA_ERROR_NOT_READY.
pub(super) const NOT_READY: i32 = 600;
pub(super) const SUCCESS: Status = Status(0);

impl DriverError {
    /// Returns the consequence of the failure. The codes are CUDA's, which HIP shares where it has them.
    pub(crate) fn failure(&self) -> Failure {
        match self.code {
            OUT_OF_MEMORY => Failure::OutOfMemory,
            4        // deinitialised: the driver is shutting down
            | 46     // device unavailable
            | 100    // no device (any more)
            | 214    // uncorrectable memory error
            | 700    // illegal address
            | 702    // launch timed out
            | 709    // context destroyed
            | 710    // assertion in a kernel
            | 714..=719 // hardware stack, illegal instruction, misaligned address, address space, pc, launch failure
            | 999    // unknown: the code of a hung or reset GPU
            => Failure::DeviceLost,
            _ => Failure::Other,
        }
    }

    /// Returns the crate's error, for the device named `device`. Callers that allocate handle out-of-memory errors,
    /// which need more details.
    pub(crate) fn into_error(self, device: &str) -> Error {
        match self.failure() {
            Failure::DeviceLost => Error::EngineDead { reason: format!("device {device} was lost: {self}") },
            Failure::OutOfMemory | Failure::Other => {
                Error::Device { device: device.to_string(), problem: self.to_string() }
            }
        }
    }
}

impl std::fmt::Display for DriverError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed with {} ({})", self.call, self.code, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_devices_are_told_from_failed_calls() {
        let failure = |code| DriverError { call: "hipX", code, text: "x".into() }.failure();
        assert_eq!(failure(2), Failure::OutOfMemory);
        for lost in [700, 719, 999] {
            assert_eq!(failure(lost), Failure::DeviceLost);
        }
        for other in [1, 98, 209, 500, 900] {
            assert_eq!(failure(other), Failure::Other);
        }
    }
}
