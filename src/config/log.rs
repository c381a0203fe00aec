//! From which level on messages are shown.

use super::names::by_name;
use crate::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Debug,
    Info,
    Warning,
    Error,
    /// No message is shown.
    Off,
}

impl LogLevel {
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Off => "off",
        }
    }

    /// # Errors
    /// `InvalidRequest` that names the argument or variable `what`, for what is no name of a level.
    pub fn named(what: &'static str, name: &str) -> Result<Self> {
        by_name(what, name, &[Self::Debug, Self::Info, Self::Warning, Self::Error, Self::Off], Self::name)
    }
}
