//! Tests of prompts: in parts, whole, and several in one step.

mod partial;
mod together;
mod whole;
