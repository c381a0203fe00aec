//! Messages on stderr: always faults, and launches on request.

use std::fmt;

#[allow(clippy::print_stderr)] // a driver has no other channel to the person who debugs
pub(crate) fn say(text: fmt::Arguments<'_>) {
    eprintln!("hipsim: {text}");
}
