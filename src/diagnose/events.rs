//! Formats the engine's `tracing` events as lines of text.

use std::fmt::{Debug, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Calls a function for every event of this crate, down to debug level. There are no spans.
pub struct Listener<F>(pub F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Subscriber for Listener<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with(env!("CARGO_PKG_NAME")) && *metadata.level() <= Level::DEBUG
    }

    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Returns an event as one line: its message, then its fields.
pub fn event_text(event: &Event<'_>) -> String {
    let mut text = Text::default();
    event.record(&mut text);
    text.message + &text.fields
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a `String` cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "; {name}: {value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Runs `call` and returns its result with the warnings that it raised on this thread. Those are not logged elsewhere.
pub fn with_warnings<T>(call: impl FnOnce() -> T) -> (T, Vec<String>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&warnings);
    let listener = Listener(move |event: &Event<'_>| {
        if *event.metadata().level() <= Level::WARN {
            heard.lock().push(event_text(event));
        }
    });
    let result = tracing::subscriber::with_default(listener, call);
    (result, std::mem::take(&mut *warnings.lock()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_a_call_are_whole_lines() {
        let ((), warnings) = with_warnings(|| {
            tracing::info!("not a warning");
            tracing::warn!(path = %"/a b", count = 3, unit = "gemv", "kernels of {} cannot be kept", "gfx942");
            tracing::error!("worse");
        });
        assert_eq!(warnings, ["kernels of gfx942 cannot be kept; path: /a b; count: 3; unit: gemv", "worse"]);
    }
}
