//! A compiled kernel that accesses unmapped memory, divides by zero or the like must not end the process. The signal
//! handler continues the thread in the object's `cpu_fault`, which ends the kernel with an error.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use crate::guarded_pages::release_page;

/// The two functions of gpu_cpu.h for leaving a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Escape {
    stack: unsafe extern "C" fn() -> *mut c_void,
    fault: unsafe extern "C" fn(*const c_char, *mut c_void),
}

thread_local! {
    static WATCHED: Cell<Option<Escape>> = const { Cell::new(None) };
    static HANDLER_STACK: HandlerStack = HandlerStack::install();
}

/// Makes a fault in a kernel on this thread end the kernel, until this value is dropped.
pub(super) struct Watch;

impl Escape {
    /// # Safety
    /// The addresses of `cpu_fault_stack` and `cpu_fault` in an object that stays loaded while it is watched.
    pub(super) unsafe fn new(stack: *mut c_void, fault: *mut c_void) -> Self {
        // SAFETY: the types are those of gpu_cpu.h.
        unsafe {
            Self {
                stack: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(stack),
                fault: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *mut c_void)>(fault),
            }
        }
    }

    pub(super) fn watch(self) -> Watch {
        install_handlers();
        HANDLER_STACK.with(|_| ());
        WATCHED.set(Some(self));
        Watch
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.set(None);
    }
}

const SIGNALS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
static PREVIOUS: OnceLock<[libc::sigaction; 4]> = OnceLock::new();

pub(crate) fn install_handlers() {
    PREVIOUS.get_or_init(|| {
        SIGNALS.map(|signal| {
            let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: an all-zero sigaction is valid; the handler has the signature that SA_SIGINFO asks for and does
            // only what a handler may: see there.
            unsafe {
                let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(signal, &action, previous.as_mut_ptr());
                previous.assume_init()
            }
        })
    });
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    if signal == libc::SIGSEGV {
        // SAFETY: the information that the system passed in.
        let address = unsafe { (*info).si_addr() }.addr();
        // SAFETY: reads variables of this thread, which a running kernel has initialised.
        let in_kernel = WATCHED.get().is_some_and(|escape| !unsafe { (escape.stack)() }.is_null());
        // SAFETY: the context that the system passed in.
        if release_page(address, unsafe { interrupted_at(context) }, !in_kernel) {
            return;
        }
    }
    if let Some(escape) = WATCHED.get() {
        // SAFETY: reads variables of this thread, which the running kernel has initialised.
        let stack = unsafe { (escape.stack)() };
        if !stack.is_null() {
            // SAFETY: the kernel's address for SIGSEGV and SIGBUS, the instruction's for the others.
            let address = unsafe { (*info).si_addr() };
            // SAFETY: the context that the system passed in.
            if unsafe { redirect(context, escape, stack, describe(signal), address) } {
                // Only once: a kernel that has destroyed what `cpu_fault` needs would otherwise fault for ever.
                WATCHED.set(None);
                return;
            }
        }
    }
    // The fault is not a kernel's. With the previous handler restored, the instruction runs and faults again.
    let previous = SIGNALS.iter().position(|known| *known == signal).and_then(|i| PREVIOUS.get()?.get(i));
    if let Some(previous) = previous {
        // SAFETY: an action that sigaction returned.
        unsafe { libc::sigaction(signal, previous, std::ptr::null_mut()) };
    }
}

fn describe(signal: i32) -> &'static CStr {
    match signal {
        libc::SIGSEGV | libc::SIGBUS => c"memory access out of bounds",
        libc::SIGFPE => c"integer division by zero",
        _ => c"illegal instruction",
    }
}

/// Returns the address of the interrupted instruction.
///
/// # Safety
/// `context` is the `ucontext_t` of a signal's handler.
unsafe fn interrupted_at(context: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let address = registers.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(not(target_arch = "x86_64"))]
    let address = registers.pc as usize;
    address
}

/// Continues the interrupted thread in `cpu_fault(what, address)`, on a separate stack, as if called.
///
/// # Safety
/// `context` is the `ucontext_t` of a signal's handler, and the thread was in a kernel of the escape's object.
#[cfg(target_arch = "x86_64")]
unsafe fn redirect(
    context: *mut c_void,
    escape: Escape,
    stack: *mut c_void,
    what: &CStr,
    address: *mut c_void,
) -> bool {
    // SAFETY: the caller's promise.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let value = |pointer: usize| pointer as i64;
    registers[libc::REG_RIP as usize] = value(escape.fault as usize);
    registers[libc::REG_RDI as usize] = value(what.as_ptr().addr());
    registers[libc::REG_RSI as usize] = value(address.addr());
    // At its entry a function's stack pointer is 8 below a multiple of 16, because of the return address.
    registers[libc::REG_RSP as usize] = value((stack.addr() & !15) - 8);
    true
}

/// Does nothing: on other processors a fault in a kernel ends the process.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn redirect(_: *mut c_void, _: Escape, _: *mut c_void, _: &CStr, _: *mut c_void) -> bool {
    false
}

/// A stack for the handler: the fiber's own may have overflowed. Threads of Rust already have one.
struct HandlerStack(Option<Box<[u8]>>);

const HANDLER_STACK_BYTES: usize = 64 << 10;

impl HandlerStack {
    fn install() -> Self {
        let mut present = MaybeUninit::<libc::stack_t>::zeroed();
        // SAFETY: only asks; an all-zero stack_t is valid.
        let present = unsafe {
            libc::sigaltstack(std::ptr::null(), present.as_mut_ptr());
            present.assume_init()
        };
        if present.ss_flags & libc::SS_DISABLE == 0 {
            return Self(None);
        }
        let mut memory = vec![0; HANDLER_STACK_BYTES].into_boxed_slice();
        let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
        // SAFETY: the memory lives until this thread ends, when `drop` takes it away again.
        unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
        Self(Some(memory))
    }
}

impl Drop for HandlerStack {
    fn drop(&mut self) {
        if self.0.is_some() {
            let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            // SAFETY: this thread's own setting.
            unsafe { libc::sigaltstack(&none, std::ptr::null_mut()) };
        }
    }
}
