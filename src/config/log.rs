//! The lowest level of messages that are logged.

use super::names::by_name;
use crate::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Debug,
    Info,
    Warning,
    Error,
    /// No messages are logged.
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
    /// `InvalidRequest` naming the argument or variable `what`, for an unknown level.
    pub fn named(what: &'static str, name: &str) -> Result<Self> {
        by_name(what, name, &[Self::Debug, Self::Info, Self::Warning, Self::Error, Self::Off], Self::name)
    }
}
