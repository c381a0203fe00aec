//! Tests of the engine with a scripted executor.

mod deep;
mod drafts;
mod failures;
mod fake;
mod models;
mod requests;
mod structured;
mod support;
mod text;
mod tiny;
