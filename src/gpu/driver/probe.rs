//! Probes AMD's driver before this process opens it, in a separate process (`helper::driver_probe`). With some pairs of
//! a kernel and a ROCm release the driver crashes or hangs instead of failing. The verdict, unless it is a timeout, is
//! stored. Its key is the library's file, the kernel's release, the GPUs, the variables that select GPUs, and this
//! version. Nothing is probed without a helper program, or on a machine without an AMD GPU.

use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cache::{Cache, Key};
use crate::config::GpuOptions;
use crate::job::{self, Failure};
use crate::system::System;

/// A driver with eight GPUs takes some seconds.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The answer of a process that found no fault. Any other answer is the fault.
pub(crate) const GOOD: &[u8] = b"good";
/// Begins the lines in which that process announces its next step.
pub(crate) const STEP: &str = "probe: ";
/// The most lines of the driver's output to show.
const SHOWN_LINES: usize = 2;

/// Verdicts of this process, since the disk cache may be off.
static KNOWN: Mutex<Vec<(Key, Vec<u8>)>> = Mutex::new(Vec::new());

/// The kind of verdict that the caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// An earlier one, if there is one for the present state of everything.
    Earlier,
    /// A new one, regardless of earlier findings.
    Anew,
}

/// Checks that this process may open and use the driver. `library` names it, with the state of its file.
///
/// # Errors
/// The text says how the driver failed.
pub(crate) fn check(options: &GpuOptions, library: &str, asked: Verdict) -> Result<(), String> {
    let Some(command) = options.helper.as_deref() else { return Ok(()) };
    let system = System::look(options);
    if options.library.is_none() && !system.may_have_gpu() {
        return Ok(());
    }
    let (cache, key) = (Cache::verdicts(options.cache_dir.as_deref()), key(options, library, &system));
    let earlier = || {
        let known = KNOWN.lock().iter().find(|(known, _)| *known == key).map(|(_, verdict)| verdict.clone());
        known.or_else(|| cache.load(&key)).filter(|_| asked == Verdict::Earlier)
    };
    // Engines that start together probe once.
    let _lock = cache.lock(&key);
    let verdict = match earlier() {
        Some(verdict) => verdict,
        None => match verdict_of(job::run(command, &job(options), TIMEOUT)) {
            Ok(found) => {
                if found.lasts {
                    cache.store(&key, &found.text);
                }
                found.text
            }
            Err(problem) => {
                tracing::debug!("probing AMD's driver: {problem}");
                return Ok(());
            }
        },
    };
    let mut known = KNOWN.lock();
    known.retain(|(known, _)| *known != key);
    known.push((key, verdict.clone()));
    if verdict == GOOD {
        return Ok(());
    }
    let note = system.known_pairs().map_or(String::new(), |note| format!("; {note}"));
    let text = String::from_utf8_lossy(&verdict);
    Err(format!("AMD's driver was tested in a separate process: {text}{note}; `rocmforge doctor` tests it again"))
}

fn job(options: &GpuOptions) -> Value {
    let text = |path: &PathBuf| path.display().to_string();
    json!({
        "kind": job::PROBE,
        "library": options.library.as_ref().map(text),
        "rocm_path": options.rocm_path.as_ref().map(text),
        "python_path": options.python_path.iter().map(text).collect::<Vec<_>>(),
        "device": options.device_index,
    })
}

/// A verdict on the driver.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    text: Vec<u8>,
    /// True if other processes may rely on it. A timeout may come from a cold disk or from many GPUs.
    lasts: bool,
}

/// Returns the verdict that follows from the end of the process.
///
/// # Errors
/// The reason why there is no verdict: the process could not be started, or a call failed without harm.
fn verdict_of(ended: Result<Vec<u8>, Failure>) -> Result<Found, String> {
    let lasting = |text: Vec<u8>| Ok(Found { text, lasts: true });
    match ended {
        Ok(verdict) => lasting(verdict),
        Err(Failure::Died(how)) => lasting(told(&format!("it {how}")).into_bytes()),
        Err(Failure::TimedOut(how)) => Ok(Found { text: told(&format!("it {how}")).into_bytes(), lasts: false }),
        // A process that exits after it announced a step was ended by the driver.
        Err(Failure::Exited(how)) if how.contains(STEP) => lasting(told(&how).into_bytes()),
        Err(Failure::Exited(problem) | Failure::NotRun(problem)) => Err(problem),
    }
}

/// Returns a key of everything that the driver's behaviour depends on, and of this version, which may avoid a fault.
fn key(options: &GpuOptions, library: &str, system: &System) -> Key {
    let (kernel, nodes, variables) = (system.kernel(), system.nodes(), system.variables());
    let version = env!("CARGO_PKG_VERSION");
    let text = format!("driver {library} {kernel} {nodes:?} {variables:?} {:?} {version}", options.device_index);
    blake3::hash(text.as_bytes())
}

/// Says how the process ended, during which step, and what the driver printed last.
fn told(how: &str) -> String {
    let (ended, printed) = how.split_once(": ").unwrap_or((how, ""));
    let during = printed.lines().rev().find_map(|line| line.strip_prefix(STEP));
    let said: Vec<&str> = printed.lines().filter(|line| !line.starts_with(STEP)).collect();
    let said = said[said.len().saturating_sub(SHOWN_LINES)..].join(" / ");
    let during = during.map_or(String::new(), |step| format!(" while {step}"));
    let said = if said.is_empty() { said } else { format!(" ({said})") };
    format!("{ended}{during}{said}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_told_in_one_line() {
        assert_eq!(told("it was killed by signal 11"), "it was killed by signal 11");
        let printed = "probe: opening a device\nprobe: loading code\nHSA: x\nHSA: y\nMemory access fault: node-1";
        assert_eq!(
            told(&format!("it was killed by signal 6: {printed}")),
            "it was killed by signal 6 while loading code (HSA: y / Memory access fault: node-1)"
        );
    }

    /// An interpreter that cannot be started says nothing about the driver; one that the driver ends does.
    #[test]
    fn only_the_driver_is_judged() {
        let failure = |kind: fn(String) -> Failure, text: &str| verdict_of(Err(kind(text.to_owned())));
        let verdict = |text: &str| Ok(Found { text: text.as_bytes().to_vec(), lasts: true });
        assert_eq!(verdict_of(Ok(GOOD.to_vec())), verdict("good"));
        assert_eq!(failure(Failure::Died, "was killed by signal 6"), verdict("it was killed by signal 6"));
        let slow = Found { text: b"it did not end within 20 s".to_vec(), lasts: false };
        assert_eq!(failure(Failure::TimedOut, "did not end within 20 s"), Ok(slow));
        let exit = "its process ended with status 1";
        assert_eq!(
            failure(Failure::Exited, &format!("{exit}: probe: opening a device\n")),
            verdict(&format!("{exit} while opening a device"))
        );
        assert_eq!(failure(Failure::Exited, exit), Err(exit.to_owned()));
        assert_eq!(failure(Failure::NotRun, "python: not found"), Err("python: not found".to_owned()));
    }
}
