//! Modules, their functions, and launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use super::fault::strike;
use super::{find, find_stream, put};
use crate::device::Function;
use crate::handle::{Kind, pack};
use crate::image::Image;
use crate::log::say;
use crate::module::{KernelInfo, Module};
use crate::runtime::current;
use crate::status::{Result, Status};
use crate::streams::operation::{Launch, Operation};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> Status {
    let load = || {
        strike("hipModuleLoadData")?;
        let device = current()?;
        drop(device.working_uncaptured()?);
        // SAFETY: the module's contract: the image is a whole code object.
        let image = unsafe { elf_bytes(image.cast()) }.ok_or(Status::INVALID_IMAGE)?;
        // The lock is not held here: loading may run a linker, which takes time.
        let loaded = Module::load(image, device.target)?;
        let mut state = device.lock();
        let id = state.new_id();
        state.modules.insert(id, Arc::new(loaded));
        state.images.insert(id, Image::of(image));
        // SAFETY: the module's contract.
        unsafe { put(module, pack(Kind::Module, device.index, id)) }
    };
    load().into()
}

/// Returns an ELF image of unknown length: it ends with the last part that its headers name.
///
/// # Safety
/// `image` is null or points to a whole file in memory.
unsafe fn elf_bytes<'a>(image: *const u8) -> Option<&'a [u8]> {
    const HEADER: usize = 64;
    // SAFETY: the caller of a load passes at least a header; null is not read.
    let header = (!image.is_null()).then(|| unsafe { std::slice::from_raw_parts(image, HEADER) })?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    // SAFETY: the length was computed from the headers before it.
    let prefix = |length: usize| unsafe { std::slice::from_raw_parts(image, length) };
    let [segments, sections] = [32, 40].map(|at| number::<8>(header, at));
    let [segment_size, num_segments, section_size, num_sections] = [54, 56, 58, 60].map(|at| number::<2>(header, at));
    let segments_end = segments + segment_size * num_segments;
    let mut length = HEADER.max(segments_end).max(sections + section_size * num_sections);
    for i in 0..num_segments {
        let segment = segments + i * segment_size;
        let headers = prefix(segments_end);
        length = length.max(number::<8>(headers, segment + 8) + number::<8>(headers, segment + 32));
    }
    Some(prefix(length))
}

/// Reads a little-endian number of `N` bytes.
fn number<const N: usize>(bytes: &[u8], at: usize) -> usize {
    bytes[at..at + N].iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipModuleUnload(module: *mut c_void) -> Status {
    let unload = || {
        let (device, id) = find(Kind::Module, module)?;
        let mut state = device.lock();
        state.modules.remove(&id).ok_or(Status::INVALID_HANDLE)?;
        state.functions.retain(|_, function| function.module != id);
        if state.images.remove(&id).is_some_and(|image| !image.is_there()) {
            say(format_args!("hipModuleUnload: the image was freed or changed while the module was loaded"));
            return Err(Status::INVALID_IMAGE);
        }
        Ok(())
    };
    unload().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleGetFunction(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> Status {
    let get = || {
        let (device, id) = find(Kind::Module, module)?;
        if name.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the module's contract.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Status::NOT_FOUND)?.to_owned();
        let mut state = device.working()?;
        let info = state.modules.get(&id).ok_or(Status::INVALID_HANDLE)?.kernel(&name).ok_or(Status::NOT_FOUND)?;
        let function_id = state.new_id();
        state.functions.insert(function_id, Function { module: id, name: name.into(), info });
        // SAFETY: the module's contract.
        unsafe { put(function, pack(Kind::Function, device.index, function_id)) }
    };
    get().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipFuncGetAttribute(value: *mut c_int, attribute: c_int, function: *mut c_void) -> Status {
    let get = || {
        let (device, id) = find(Kind::Function, function)?;
        let state = device.lock();
        let info = &state.functions.get(&id).ok_or(Status::INVALID_HANDLE)?.info;
        let found = match attribute {
            0 => info.max_threads,
            1 => info.shared_bytes,
            3 => info.private_bytes,
            4 => info.registers,
            _ => return Err(Status::INVALID_VALUE),
        };
        // SAFETY: the module's contract.
        unsafe { put(value, found.cast_signed()) }
    };
    get().into()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Status {
    let launch = || {
        if strike("hipModuleLaunchKernel")? {
            return Ok(());
        }
        let (device, stream) = find_stream(stream)?;
        let (owner, id) = find(Kind::Function, function)?;
        if owner.index != device.index {
            return Err(Status::INVALID_HANDLE);
        }
        let mut state = device.working()?;
        let Function { info, name, .. } = state.functions.get(&id).ok_or(Status::INVALID_HANDLE)?;
        let name = Arc::clone(name);
        let bytes = match (parameters.is_null(), extra.is_null()) {
            // SAFETY: the module's contract: a pointer to each argument.
            (false, true) => unsafe { gather(info, parameters) },
            // SAFETY: the module's contract: a list that ends.
            (true, false) => unsafe { read_extra(extra) }?,
            (true, true) if info.arguments.is_empty() => Vec::new(),
            _ => return Err(Status::INVALID_VALUE),
        };
        let words = bytes.chunks(16).map(|chunk| {
            let mut word = [0; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            u128::from_le_bytes(word)
        });
        let launch = Launch {
            function: id,
            name,
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            arguments: words.collect(),
            argument_bytes: bytes.len(),
        };
        device.check_launch(&state, &launch)?;
        device.enqueue(&mut state, stream, Operation::Launch(launch))
    };
    launch().into()
}

/// Collects arguments from one pointer each.
///
/// # Safety
/// `parameters` points to as many pointers as the kernel has arguments, each to a value of the argument's size.
unsafe fn gather(info: &KernelInfo, parameters: *const *mut c_void) -> Vec<u8> {
    let mut bytes = vec![0; info.argument_bytes()];
    for (i, (offset, size)) in info.arguments.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let value = parameters.add(i).read().cast::<u8>();
            value.copy_to_nonoverlapping(bytes[*offset..*offset + *size].as_mut_ptr(), *size);
        }
    }
    bytes
}

/// Reads arguments from one buffer: { 1, pointer, 2, pointer to its size, 3 }.
///
/// # Safety
/// `extra` is such a list, and the buffer has that size.
unsafe fn read_extra(extra: *const *mut c_void) -> Result<Vec<u8>> {
    const POINTER: usize = 1;
    const SIZE: usize = 2;
    const END: usize = 3;
    let (mut buffer, mut size) = (None, None);
    let mut at = extra;
    // SAFETY: the list goes on until END, and its entries come in pairs.
    unsafe {
        loop {
            match at.read().addr() {
                POINTER => buffer = Some(at.add(1).read().cast::<u8>()),
                SIZE => size = Some(at.add(1).read().cast::<usize>().read()),
                END => break,
                _ => return Err(Status::INVALID_VALUE),
            }
            at = at.add(2);
        }
    }
    let (Some(buffer), Some(size)) = (buffer, size) else { return Err(Status::INVALID_VALUE) };
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(buffer, size) }.to_vec())
}
