//! hipError_t: the values that the stand-in returns.

use std::ffi::CStr;

/// hipError_t.
#[must_use]
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub i32);

macro_rules! statuses {
    ($($constant:ident = $value:literal $name:literal $text:literal;)*) => {
        impl Status {
            $(pub const $constant: Self = Self($value);)*

            pub(crate) fn name(self) -> &'static CStr {
                match self.0 {
                    $($value => $name,)*
                    _ => c"hipErrorUnknown",
                }
            }

            pub(crate) fn text(self) -> &'static CStr {
                match self.0 {
                    $($value => $text,)*
                    _ => c"unknown error",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0 c"hipSuccess" c"no error";
    INVALID_VALUE = 1 c"hipErrorInvalidValue" c"invalid argument";
    OUT_OF_MEMORY = 2 c"hipErrorOutOfMemory" c"out of memory";
    NO_DEVICE = 100 c"hipErrorNoDevice" c"no ROCm-capable device is detected";
    INVALID_DEVICE = 101 c"hipErrorInvalidDevice" c"invalid device ordinal";
    INVALID_IMAGE = 200 c"hipErrorInvalidImage" c"device kernel image is invalid";
    NO_BINARY_FOR_GPU = 209 c"hipErrorNoBinaryForGpu" c"no kernel image is available for execution on the device";
    INVALID_HANDLE = 400 c"hipErrorInvalidHandle" c"invalid resource handle";
    ILLEGAL_STATE = 401 c"hipErrorIllegalState" c"the operation cannot be performed in the present state";
    NOT_FOUND = 500 c"hipErrorNotFound" c"named symbol not found";
    NOT_READY = 600 c"hipErrorNotReady" c"device not ready";
    ILLEGAL_ADDRESS = 700 c"hipErrorIllegalAddress" c"an illegal memory access was encountered";
    LAUNCH_FAILURE = 719 c"hipErrorLaunchFailure" c"unspecified launch failure";
    NOT_SUPPORTED = 801 c"hipErrorNotSupported" c"operation not supported";
    CAPTURE_UNSUPPORTED = 900 c"hipErrorStreamCaptureUnsupported" c"operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = 901 c"hipErrorStreamCaptureInvalidated" c"the capture failed by an earlier call";
    CAPTURE_UNJOINED = 904 c"hipErrorStreamCaptureUnjoined" c"the capture has a stream that was not joined";
    CAPTURED_EVENT = 907 c"hipErrorCapturedEvent" c"the event was last recorded in a capture";
    CAPTURE_WRONG_THREAD = 908 c"hipErrorStreamCaptureWrongThread" c"the capture belongs to another thread";
    UNKNOWN = 999 c"hipErrorUnknown" c"unknown error";
}

pub(crate) type Result<T> = std::result::Result<T, Status>;

impl From<Result<()>> for Status {
    fn from(result: Result<()>) -> Self {
        result.err().unwrap_or(Self::SUCCESS)
    }
}
