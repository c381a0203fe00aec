//! Outputs and statistics on their way to Python.

pub(super) mod merged;
pub(super) mod output;
pub(super) mod snapshots;
pub(super) mod update;
