//! Which devices a model file runs on.

use crate::backend::gpu::check_kv_layers;
use crate::config::KvCacheDtype;
use crate::engine::load_tokenizer;
use crate::gguf::GgufFile;
use crate::model::{ModelSpec, ModelTensors};
use crate::{Error, Result};

/// Why a file does not run on a device of each kind, whatever memory it has; `None` where it runs.
#[derive(Debug)]
pub struct Support {
    pub cpu: Option<Error>,
    pub gpu: Option<Error>,
}

/// Asks what a load asks of the file, then what it asks of a device of each kind. No device is opened.
pub fn support(file: &GgufFile) -> Support {
    match readable(file) {
        Err(problem) => Support { cpu: Some(problem.clone()), gpu: Some(problem) },
        Ok(spec) => {
            // The limits are those of a layer's heads, whatever its blocks are.
            let layers = spec.kv_layers(&vec![1; spec.kv_groups.len()], 1, KvCacheDtype::F16);
            Support { cpu: None, gpu: check_kv_layers(&layers).err() }
        }
    }
}

fn readable(file: &GgufFile) -> Result<ModelSpec> {
    let spec = ModelSpec::from_gguf(file, None)?;
    ModelTensors::collect(file, &spec)?.rank_head()?;
    load_tokenizer(file.metadata())?;
    Ok(spec)
}
