//! Capture of a stream into a graph, and its replay.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::thread;

use super::{find, find_stream, put};
use crate::device::NULL_STREAM;
use crate::handle::{Kind, pack};
use crate::status::Status;
use crate::streams::operation::Operation;

const THREAD_LOCAL: c_int = 1;

#[unsafe(no_mangle)]
pub extern "C" fn hipStreamBeginCapture(stream: *mut c_void, mode: c_int) -> Status {
    let begin = || {
        let (device, id) = find_stream(stream)?;
        if mode != THREAD_LOCAL {
            return Err(Status::NOT_SUPPORTED);
        }
        if id == NULL_STREAM {
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        device.working()?.stream(id)?.capture.begin(thread::current().id())
    };
    begin().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> Status {
    let end = || {
        let (device, id) = find_stream(stream)?;
        let mut state = device.lock();
        let operations = state.stream(id)?.capture.end(thread::current().id());
        if !state.stream(id)?.capture.is_active() {
            let forks = state.streams.live.values_mut().filter(|stream| stream.capture.origin == Some(id));
            forks.for_each(|fork| fork.capture.origin = None);
        }
        let operations = operations?;
        let graph_id = state.new_id();
        state.graphs.insert(graph_id, operations.into());
        // SAFETY: the module's contract.
        unsafe { put(graph, pack(Kind::Graph, device.index, graph_id)) }
    };
    end().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphInstantiate(
    executable: *mut *mut c_void,
    graph: *mut c_void,
    _error_node: *mut c_void,
    _log: *mut c_char,
    _log_bytes: usize,
) -> Status {
    let instantiate = || {
        let (device, id) = find(Kind::Graph, graph)?;
        let mut state = device.working()?;
        let operations = Arc::clone(state.graphs.get(&id).ok_or(Status::INVALID_HANDLE)?);
        let executable_id = state.new_id();
        state.executables.insert(executable_id, operations);
        // SAFETY: the module's contract.
        unsafe { put(executable, pack(Kind::GraphExec, device.index, executable_id)) }
    };
    instantiate().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGraphDestroy(graph: *mut c_void) -> Status {
    let destroy = || {
        let (device, id) = find(Kind::Graph, graph)?;
        device.lock().graphs.remove(&id).map(|_| ()).ok_or(Status::INVALID_HANDLE)
    };
    destroy().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGraphExecDestroy(executable: *mut c_void) -> Status {
    let destroy = || {
        let (device, id) = find(Kind::GraphExec, executable)?;
        device.lock().executables.remove(&id).map(|_| ()).ok_or(Status::INVALID_HANDLE)
    };
    destroy().into()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGraphLaunch(executable: *mut c_void, stream: *mut c_void) -> Status {
    let launch = || {
        let (device, stream) = find_stream(stream)?;
        let (owner, id) = find(Kind::GraphExec, executable)?;
        if owner.index != device.index {
            return Err(Status::INVALID_HANDLE);
        }
        let mut state = device.working()?;
        state.stream(stream)?.capture.refuse()?;
        let operations = Arc::clone(state.executables.get(&id).ok_or(Status::INVALID_HANDLE)?);
        device.enqueue(&mut state, stream, Operation::Graph(operations))
    };
    launch().into()
}
