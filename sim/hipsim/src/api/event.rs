//! Events. They carry no time.

use std::ffi::{c_uint, c_void};

use super::{find, find_stream, put};
use crate::device::Wait;
use crate::handle::{Kind, pack};
use crate::runtime::current;
use crate::status::Status;
use crate::streams::queue::{Event, Progress};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventCreateWithFlags(event: *mut *mut c_void, _flags: c_uint) -> Status {
    let create = || {
        let device = current()?;
        let mut state = device.working()?;
        let id = state.new_id();
        state.events.insert(id, Event::default());
        // SAFETY: the module's contract.
        unsafe { put(event, pack(Kind::Event, device.index, id)) }
    };
    create().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipEventDestroy(event: *mut c_void) -> Status {
    let destroy = || {
        let (device, id) = find(Kind::Event, event)?;
        device.lock().events.remove(&id).map(|_| ()).ok_or(Status::INVALID_HANDLE)
    };
    destroy().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipEventRecord(event: *mut c_void, stream: *mut c_void) -> Status {
    let record = || {
        let (device, stream) = find_stream(stream)?;
        let (owner, event) = find(Kind::Event, event)?;
        if owner.index != device.index {
            return Err(Status::INVALID_HANDLE);
        }
        device.record(&mut *device.working()?, event, stream)
    };
    record().into()
}

/// Runs the event's stream up to its record, but no further.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventSynchronize(event: *mut c_void) -> Status {
    let synchronize = || {
        let (device, id) = find(Kind::Event, event)?;
        let mut state = device.working_uncaptured()?;
        let Event { mark, captured, .. } = state.events.get(&id).ok_or(Status::INVALID_HANDLE)?;
        let (mark, None) = (*mark, captured) else { return Err(Status::CAPTURED_EVENT) };
        if state.without == Some(Wait::Event) {
            return Ok(());
        }
        mark.map_or(Ok(()), |mark| device.run_until(&mut state, mark))
    };
    synchronize().into()
}

/// The first query after a record returns "not ready" if the record has not run. The next one runs the stream up to it.
#[unsafe(no_mangle)]
pub extern "C" fn hipEventQuery(event: *mut c_void) -> Status {
    let query = || {
        let (device, id) = find(Kind::Event, event)?;
        let mut state = device.working_uncaptured()?;
        let Event { mark, queried, captured, .. } = state.events.get(&id).ok_or(Status::INVALID_HANDLE)?;
        if captured.is_some() {
            return Err(Status::CAPTURED_EVENT);
        }
        let (Some(mark), queried) = (*mark, *queried) else { return Ok(()) };
        if state.streams.progress(mark) == Progress::Done || queried {
            return device.run_until(&mut state, mark);
        }
        state.events.get_mut(&id).ok_or(Status::INVALID_HANDLE)?.queried = true;
        Err(Status::NOT_READY)
    };
    query().into()
}
