//! Messages of the stand-in on stderr: faults always, launches when asked to.

use std::fmt;

#[allow(clippy::print_stderr)] // a driver has no other channel to the person who debugs
pub(crate) fn say(text: fmt::Arguments<'_>) {
    eprintln!("hipsim: {text}");
}
