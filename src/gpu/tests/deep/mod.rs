//! Tests that take minutes: `make test` leaves this module out, `make test-kernels` runs it.

mod barriers;
mod targets;
