//! Runs foreign code that may abort in a child process, which returns its result through an anonymous file.
//!
//! If the options name a program, `spawn` starts it: a fresh process, without any half-changed state of ours. Otherwise
//! `run` forks. A fork has only the calling thread, and locks held by other threads stay locked in it. The C library
//! repairs its own locks (allocation, dynamic linking), but no other library does. A compiler that another thread is
//! using may therefore hang in the child until the timeout. The closure must touch no other shared state, and no GPU.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::config::INSIDE_HELPER;

/// Maximum bytes of the child's output to show.
const SHOWN_BYTES: usize = 4000;
const POLL: Duration = Duration::from_millis(2);
/// Time in which a killed process is expected to end.
const END: Duration = Duration::from_secs(5);

/// Runs `work` in a child process and returns its result. If the child dies, the error contains what it printed.
pub(crate) fn run(timeout: Duration, work: impl FnOnce() -> Result<Vec<u8>, String>) -> Result<Vec<u8>, String> {
    let mut result = anonymous_file()?;
    let mut printed = anonymous_file()?;
    // SAFETY: the module's comment says what the child may do. It leaves through `_exit`, so that nothing of the parent
    // (buffers, exit handlers, destructors) runs twice.
    match unsafe { libc::fork() } {
        -1 => Err(format!("fork: {}", std::io::Error::last_os_error())),
        0 => {
            let code = in_child(&mut result, &printed, work);
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let ended = wait(pid, timeout).map_err(|how| format!("the compiler {how}"))?.text;
            collect(&mut result).unwrap_or_else(|| {
                let text = tail(&mut printed);
                Err(format!("the compiler's process {ended}{}{text}", if text.is_empty() { "" } else { ": " }))
            })
        }
    }
}

/// The reason why a program gave no result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It crashed: its own work is to blame.
    Died(String),
    /// It did not end before the timeout: it hangs, or the machine is slow.
    TimedOut(String),
    /// It exited without a result: because of its work, or because it is not the expected program.
    Exited(String),
    /// It could not be started, was killed from outside, or reported why it could not do its work.
    NotRun(String),
}

/// Starts a program, which reads `job` from its standard input and answers on its standard output by `answer`; returns
/// its result. The job names the `marker` at the start of the answer, since other code may print there, too.
pub(crate) fn spawn(command: &[OsString], job: &[u8], marker: &[u8], timeout: Duration) -> Result<Vec<u8>, Failure> {
    let not_run = |problem: String| Failure::NotRun(problem);
    let [program, arguments @ ..] = command else { return Err(not_run("no program was named".to_owned())) };
    let mut input = anonymous_file().map_err(not_run)?;
    let (mut output, mut printed) = (anonymous_file().map_err(not_run)?, anonymous_file().map_err(not_run)?);
    let io = |error: io::Error| Failure::NotRun(format!("{}: {error}", program.display()));
    input.write_all(job).and_then(|()| input.seek(SeekFrom::Start(0))).map_err(io)?;
    let mut command = Command::new(program);
    command.args(arguments).env(INSIDE_HELPER, "1").stdin(input);
    command.stdout(output.try_clone().map_err(io)?).stderr(printed.try_clone().map_err(io)?);
    let child = command.spawn().map_err(io)?;
    let pid = libc::pid_t::try_from(child.id()).map_err(|error| not_run(error.to_string()))?;
    let mut with_printed = |how: String| {
        let text = tail(&mut printed);
        format!("{how}{}{text}", if text.is_empty() { "" } else { ": " })
    };
    let ended = wait(pid, timeout).map_err(|how| Failure::TimedOut(with_printed(how)))?;
    let mut bytes = Vec::new();
    output.seek(SeekFrom::Start(0)).and_then(|_| output.read_to_end(&mut bytes)).map_err(io)?;
    let at = bytes.windows(marker.len()).position(|window| window == marker);
    match at.and_then(|at| result_in(&bytes[at + marker.len()..])) {
        Some(result) => result.map_err(Failure::NotRun),
        None => {
            let how = with_printed(ended.text);
            Err(match ended.by {
                By::Fault => Failure::Died(how),
                By::Itself => Failure::Exited(format!("its process {how}")),
                By::Others => Failure::NotRun(format!("its process {how}")),
            })
        }
    }
}

/// Does the work of a program started by `spawn`: redirects other output, writes the result, and ends the process.
pub(crate) fn answer(marker: &[u8], work: impl FnOnce() -> Result<Vec<u8>, String>) -> ! {
    // SAFETY: plain system calls; a descriptor that was just made belongs to nobody else. Everything printed from here
    // on goes to standard error.
    let mut result = unsafe {
        let own = libc::dup(1);
        libc::dup2(2, 1);
        File::from_raw_fd(own)
    };
    expect_an_abort();
    let marked = result.write_all(marker);
    let code = if marked.is_ok() { write_result(&mut result, work) } else { 1 };
    // SAFETY: ends the process; nothing of its host program runs any more.
    unsafe { libc::_exit(code) }
}

fn in_child(result: &mut File, printed: &File, work: impl FnOnce() -> Result<Vec<u8>, String>) -> libc::c_int {
    // SAFETY: plain system calls; the descriptors are open.
    unsafe {
        libc::dup2(printed.as_raw_fd(), 1);
        libc::dup2(printed.as_raw_fd(), 2);
    }
    expect_an_abort();
    write_result(result, work)
}

fn expect_an_abort() {
    // SAFETY: plain system calls; the limit outlives its call.
    unsafe {
        // An abort is expected here: no core file, and the default action instead of a handler of the host program.
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        // The child must not outlive the waiting thread.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Writes the result of `work` and returns the process' exit status.
fn write_result(result: &mut File, work: impl FnOnce() -> Result<Vec<u8>, String>) -> libc::c_int {
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| Err("panicked".into()));
    let (tag, bytes) = match outcome {
        Ok(bytes) => (b'+', bytes),
        Err(problem) => (b'-', problem.into_bytes()),
    };
    // The length comes first and the tag last: a partial result must not look complete.
    let written = result
        .write_all(&(bytes.len() as u64).to_le_bytes())
        .and_then(|()| result.write_all(&bytes))
        .and_then(|()| result.write_all(&[tag]));
    i32::from(written.is_err())
}

/// Returns the child's result, if it is complete.
fn collect(file: &mut File) -> Option<Result<Vec<u8>, String>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_end(&mut bytes).ok()?;
    result_in(&bytes)
}

fn result_in(bytes: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (body, tag) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    match tag {
        [b'+'] => Some(Ok(body.to_vec())),
        [b'-'] => Some(Err(String::from_utf8_lossy(body).into_owned())),
        _ => None,
    }
}

/// How a child ended.
struct Ended {
    text: String,
    by: By,
}

/// The cause of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// A signal that its own work caused.
    Fault,
    Itself,
    /// A signal from outside, such as a server shutdown or the out-of-memory killer; or the cause is unknown.
    Others,
}

const CRASHES: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSYS];

/// Waits for the child to end. Kills it after the timeout, which is an error.
fn wait(pid: libc::pid_t, timeout: Duration) -> Result<Ended, String> {
    let start = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call; the process is our child.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if start.elapsed() < timeout => std::thread::sleep(POLL),
            0 => {
                // SAFETY: our child, which has not been waited for, so the number is still its own.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                // A process that hangs in the kernel's driver survives SIGKILL.
                let killed = Instant::now();
                // SAFETY: `status` outlives the call.
                while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 && killed.elapsed() < END {
                    std::thread::sleep(POLL);
                }
                return Err(format!("did not end within {} s", timeout.as_secs()));
            }
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            // The host program ignores SIGCHLD or has already reaped the child: the result decides.
            -1 => return Ok(Ended { text: "ended".into(), by: By::Others }),
            _ if libc::WIFSIGNALED(status) => {
                let signal = libc::WTERMSIG(status);
                let text = format!("was killed by signal {signal}");
                return Ok(Ended { text, by: if CRASHES.contains(&signal) { By::Fault } else { By::Others } });
            }
            _ => {
                let text = format!("ended with status {}", libc::WEXITSTATUS(status));
                return Ok(Ended { text, by: By::Itself });
            }
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

/// Returns the end of the child's output.
fn tail(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // An error here only shortens the message.
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

    /// A compiler that aborts, like hipRTC on unknown targets, gives an error with its output, and this process
    /// survives.
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

    /// A crash blames the program; a kill from outside does not. A program can tell that it was started for work that
    /// may crash.
    #[test]
    fn a_crash_is_told_from_a_kill() {
        let run = |script: &str| spawn(&["/bin/sh", "-c", script].map(OsString::from), b"", b"marker", SOON);
        let inside = format!("test \"${INSIDE_HELPER}\" = 1 && kill");
        for (signal, number) in [("SEGV", 11), ("ABRT", 6), ("ILL", 4)] {
            let expected = Failure::Died(format!("was killed by signal {number}"));
            assert_eq!(run(&format!("{inside} -{signal} $$")), Err(expected));
        }
        for (signal, number) in [("TERM", 15), ("KILL", 9)] {
            let expected = Failure::NotRun(format!("its process was killed by signal {number}"));
            assert_eq!(run(&format!("{inside} -{signal} $$")), Err(expected));
        }
        let expected = Failure::Exited("its process ended with status 3: bad".to_owned());
        assert_eq!(run("echo bad >&2; exit 3"), Err(expected));
    }

    /// The message about a hanging process contains its output so far.
    #[test]
    fn a_program_that_hangs_is_quoted() {
        let command = ["/bin/sh", "-c", "echo so far >&2; exec sleep 60"].map(OsString::from);
        let expected = Failure::TimedOut("did not end within 0 s: so far".to_owned());
        assert_eq!(spawn(&command, b"", b"marker", Duration::from_millis(300)), Err(expected));
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
