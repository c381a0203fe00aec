//! Streams.

use std::ffi::{c_uint, c_void};

use super::{find, find_stream, put};
use crate::device::Wait;
use crate::handle::{Kind, pack};
use crate::log::say;
use crate::runtime::current;
use crate::status::Status;
use crate::streams::operation::{HostAddress, HostFunction, Operation};
use crate::streams::queue::Stream;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamCreateWithFlags(stream: *mut *mut c_void, flags: c_uint) -> Status {
    let create = || {
        let device = current()?;
        let mut state = device.working()?;
        if flags > 1 {
            return Err(Status::INVALID_VALUE);
        }
        let id = state.new_id();
        state.streams.live.insert(id, Stream::default());
        // SAFETY: the module's contract.
        unsafe { put(stream, pack(Kind::Stream, device.index, id)) }
    };
    create().into()
}

/// Destroys a stream. Its operations that have not run are lost: HIP promises no more.
#[unsafe(no_mangle)]
pub extern "C" fn hipStreamDestroy(stream: *mut c_void) -> Status {
    let destroy = || {
        let (device, id) = find(Kind::Stream, stream)?;
        let lost = device.lock().streams.destroy(id).ok_or(Status::INVALID_HANDLE)?;
        if lost > 0 {
            say(format_args!("device {}: hipStreamDestroy: {lost} operations never ran", device.index));
        }
        Ok(())
    };
    destroy().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipStreamSynchronize(stream: *mut c_void) -> Status {
    let synchronize = || {
        let (device, id) = find_stream(stream)?;
        let mut state = device.working_uncaptured()?;
        state.stream(id)?.capture.refuse()?;
        if state.without == Some(Wait::Stream) {
            return Ok(());
        }
        device.synchronize(&mut state, id)
    };
    synchronize().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) -> Status {
    let wait = || {
        let (device, id) = find_stream(stream)?;
        let (owner, event) = find(Kind::Event, event)?;
        if owner.index != device.index {
            return Err(Status::NOT_SUPPORTED);
        }
        let mut state = device.working()?;
        if state.without == Some(Wait::StreamForEvent) {
            return Ok(());
        }
        device.wait(&mut state, id, event)
    };
    wait().into()
}

/// Queues a call of a function of the program. Also in a capture, and then each replay of the graph calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipLaunchHostFunc(
    stream: *mut c_void,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Status {
    let launch = || {
        let (device, id) = find_stream(stream)?;
        let function = function.ok_or(Status::INVALID_VALUE)?;
        let mut state = device.working()?;
        let call = HostFunction { function, data: HostAddress(data.expose_provenance()) };
        device.enqueue(&mut state, id, Operation::Host(call))
    };
    launch().into()
}
