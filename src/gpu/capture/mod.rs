//! Captured steps: which are captured at the load, their graphs, and the test that replays read fresh integers.

mod buckets;
pub(crate) mod graphs;
pub(crate) mod replay_check;
pub(crate) mod steps;
