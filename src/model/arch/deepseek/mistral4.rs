//! `mistral4`: Mistral Small 4. Like `deepseek2`, with softmax routing.

pub(super) use super::deepseek2::spec;
