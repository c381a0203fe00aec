//! The errors that stop a template.

pub(super) type Res<T> = std::result::Result<T, Fault>;

#[derive(Debug, Clone)]
pub(super) struct Fault {
    message: String,
    /// The line of the template's source, from 1; `None` until a statement adds its own.
    line: Option<u32>,
    /// True if the template called `raise_exception`, whose message is shown as it is.
    raised: bool,
}

impl Fault {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), line: None, raised: false }
    }

    pub(super) fn raised(message: String) -> Self {
        Self { message, line: None, raised: true }
    }

    pub(super) fn at(mut self, line: u32) -> Self {
        self.line = self.line.or(Some(line));
        self
    }

    pub(super) fn describe(self) -> String {
        match self.line {
            Some(line) if !self.raised => format!("line {line}: {}", self.message),
            _ => self.message,
        }
    }
}
