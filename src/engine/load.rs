//! From a file to what the engine runs.

use std::sync::Arc;

use super::executor::Executor;
use super::handle::LoadProgress;
use crate::config::{EngineArgs, EngineConfig};
use crate::kv_cache::GroupKind;
use crate::tokenizer::{ChatTemplate, Tokenizer};
use crate::{Error, Result};

/// A model on its device, and what belongs to it.
pub struct LoadedModel {
    pub executor: Box<dyn Executor>,
    pub config: EngineConfig,
    /// The model's KV groups, in the order of `Batch::groups`.
    pub kv_groups: Vec<GroupKind>,
    pub tokenizer: Arc<Tokenizer>,
    pub chat_template: Option<Arc<ChatTemplate>>,
}

pub(super) fn load_model(
    args: &EngineArgs,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<LoadedModel> {
    progress(LoadProgress { done: 0, total: 0 });
    Err(Error::internal(format!("no loader for {}", args.model.display())))
}
