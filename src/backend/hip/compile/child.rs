//! Running foreign code that may abort, in a child process.
//!
//! hipRTC ends its process when it is asked for a GPU that it does not know. So it is called in a fork of ours, which
//! hands its result back through an anonymous file and ends. A fork has only the calling thread, and locks that other
//! threads held stay locked in it: the C library makes its own usable again (allocation, dynamic linking), the compilers
//! have no threads of their own before the first call, and the closure must touch nothing else that is shared.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

/// Text from the child that is worth showing, at most.
const SHOWN_BYTES: usize = 4000;
const POLL: Duration = Duration::from_millis(2);

/// Runs `work` in a child process and gives its result. What the child prints is part of the error if it dies.
pub fn run(timeout: Duration, work: impl FnOnce() -> Result<Vec<u8>, String>) -> Result<Vec<u8>, String> {
    let mut result = anonymous_file()?;
    let mut printed = anonymous_file()?;
    // SAFETY: see above for what the child may do. It leaves through `_exit`, so that nothing of the parent (buffers,
    // exit handlers, destructors) runs twice.
    match unsafe { libc::fork() } {
        -1 => Err(format!("fork: {}", std::io::Error::last_os_error())),
        0 => {
            let code = in_child(&mut result, &printed, work);
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let ended = wait(pid, timeout)?;
            collect(&mut result).unwrap_or_else(|| {
                let text = tail(&mut printed);
                Err(format!("the compiler's process {ended}{}{text}", if text.is_empty() { "" } else { ": " }))
            })
        }
    }
}

fn in_child(result: &mut File, printed: &File, work: impl FnOnce() -> Result<Vec<u8>, String>) -> libc::c_int {
    // SAFETY: plain system calls; the descriptors are open, the limit outlives its call.
    unsafe {
        libc::dup2(printed.as_raw_fd(), 1);
        libc::dup2(printed.as_raw_fd(), 2);
        // An abort is expected here: no core file, and the default action, not a handler of the host program.
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        // Not to outlive the thread that waits.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| Err("panicked".into()));
    let (tag, bytes) = match outcome {
        Ok(bytes) => (b'+', bytes),
        Err(problem) => (b'-', problem.into_bytes()),
    };
    // The length comes first and the tag last, so a half-written result is not taken for a whole one.
    let written = result
        .write_all(&(bytes.len() as u64).to_le_bytes())
        .and_then(|()| result.write_all(&bytes))
        .and_then(|()| result.write_all(&[tag]));
    i32::from(written.is_err())
}

/// The child's result, if it wrote all of it.
fn collect(file: &mut File) -> Option<Result<Vec<u8>, String>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_end(&mut bytes).ok()?;
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (body, tag) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    match tag {
        [b'+'] => Some(Ok(body.to_vec())),
        [b'-'] => Some(Err(String::from_utf8_lossy(body).into_owned())),
        _ => None,
    }
}

/// Waits for the child to end, and says how it did.
fn wait(pid: libc::pid_t, timeout: Duration) -> Result<String, String> {
    let start = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call; the process is our child.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if start.elapsed() < timeout => std::thread::sleep(POLL),
            0 => {
                // SAFETY: our child, which has not been waited for, so the number is still its own.
                unsafe {
                    libc::kill(pid, libc::SIGKILL);
                    libc::waitpid(pid, &raw mut status, 0);
                }
                return Err(format!("the compiler did not end within {} s", timeout.as_secs()));
            }
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            // The host program ignores SIGCHLD or reaped the child: its result tells the rest.
            -1 => return Ok("ended".into()),
            _ if libc::WIFSIGNALED(status) => return Ok(format!("was killed by signal {}", libc::WTERMSIG(status))),
            _ => return Ok(format!("ended with status {}", libc::WEXITSTATUS(status))),
        }
    }
}

fn anonymous_file() -> Result<File, String> {
    // SAFETY: the name is a constant that ends with a zero byte.
    let descriptor = unsafe { libc::memfd_create(c"rocmforge".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(format!("memfd_create: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: just opened, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// The end of what the child printed.
fn tail(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // Without it the error is shorter, not lost.
    let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(SHOWN_BYTES)..]).trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn results_and_errors_come_back() {
        let large: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        assert_eq!(run(SOON, || Ok(large.clone())).unwrap(), large);
        assert_eq!(run(SOON, || Ok(Vec::new())).unwrap(), b"");
        assert_eq!(run(SOON, || Err("line 3".into())).unwrap_err(), "line 3");
    }

    /// A compiler that aborts, as hipRTC does on unknown targets, is an error with what it said, and we live on.
    #[test]
    fn an_abort_is_an_error() {
        let error = run(SOON, || {
            // SAFETY: a system call, and the end of the child.
            unsafe {
                libc::write(2, b"LLVM ERROR: unknown".as_ptr().cast(), 19);
                libc::abort()
            }
        });
        let error = error.unwrap_err();
        assert!(error.contains("signal 6") && error.contains("LLVM ERROR: unknown"), "{error}");
    }

    #[test]
    fn a_compiler_that_hangs_is_ended() {
        let error = run(Duration::from_millis(50), || {
            std::thread::sleep(SOON);
            Ok(Vec::new())
        });
        assert!(error.unwrap_err().contains("did not end"));
    }

    /// Several threads compile at the same time.
    #[test]
    fn children_do_not_mix() {
        std::thread::scope(|scope| {
            for number in 0..8u8 {
                scope.spawn(move || assert_eq!(run(SOON, || Ok(vec![number; 100_000])).unwrap(), [number; 100_000]));
            }
        });
    }
}
