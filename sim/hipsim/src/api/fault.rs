//! Driver calls that misbehave on request, as real drivers do for some combinations of a kernel and a release.

use std::sync::OnceLock;
use std::time::Duration;

use crate::log::say;
use crate::status::{Result, Status};

/// The ways in which a call misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Segfault,
    Abort,
    /// The call never returns.
    Hang,
    /// The call ends the process with success.
    Exit,
    /// The call returns `hipErrorInvalidValue`.
    Fail,
    /// The call succeeds without doing anything.
    Nothing,
}

const WAYS: [(&str, How); 6] = [
    ("segfault", How::Segfault),
    ("abort", How::Abort),
    ("hang", How::Hang),
    ("exit", How::Exit),
    ("fail", How::Fail),
    ("nothing", How::Nothing),
];

/// Returns the call that `HIPSIM_FAULT` names, and its way to misbehave.
fn wanted() -> Option<&'static (String, How)> {
    static WANTED: OnceLock<Option<(String, How)>> = OnceLock::new();
    WANTED
        .get_or_init(|| {
            let text = std::env::var("HIPSIM_FAULT").ok().filter(|text| !text.is_empty())?;
            let way = text.split_once(':').and_then(|(call, name)| {
                let (_, how) = WAYS.iter().find(|(known, _)| *known == name)?;
                Some((call.to_owned(), *how))
            });
            if way.is_none() {
                say(format_args!("HIPSIM_FAULT={text}: a call, a colon and a way are expected"));
            }
            way
        })
        .as_ref()
}

/// Misbehaves if this call is the one to do so. Returns true if the call should do nothing.
pub(super) fn strike(call: &str) -> Result<bool> {
    let Some((_, how)) = wanted().filter(|(name, _)| name == call) else { return Ok(false) };
    match how {
        // SAFETY: a fault is what is asked for.
        How::Segfault => unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::raise(libc::SIGSEGV);
        },
        How::Abort => std::process::abort(),
        How::Hang => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        // SAFETY: ends the process.
        How::Exit => unsafe { libc::_exit(1) },
        How::Fail => return Err(Status::INVALID_VALUE),
        How::Nothing => {}
    }
    Ok(*how == How::Nothing)
}
