//! `jais2`: Jais 2. Like `nemotron`, with biases on the matrices if the file has them.

pub(super) use super::nemotron::spec;
