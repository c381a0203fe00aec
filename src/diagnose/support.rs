//! Determines which devices a model file runs on.

use crate::config::KvCacheDtype;
use crate::engine::load_tokenizer;
use crate::gguf::GgufFile;
use crate::gpu::{check_experts, check_kv_layers};
use crate::model::{ModelSpec, ModelTensors};
use crate::{Error, Result};

/// The reason why a file does not run on each kind of device, regardless of memory; `None` if it runs.
#[derive(Debug)]
pub struct Support {
    pub cpu: Option<Error>,
    pub gpu: Option<Error>,
}

/// Makes the checks of a load on the file, then those for each kind of device. No device is opened.
pub fn support(file: &GgufFile) -> Support {
    match readable(file) {
        Err(problem) => Support { cpu: Some(problem.clone()), gpu: Some(problem) },
        Ok(spec) => {
            // The limits apply to a layer's heads, whatever its number of blocks.
            let layers = spec.kv_layers(&vec![1; spec.kv_groups.len()], 1, KvCacheDtype::F16);
            let mut experts = spec.layers.iter().filter_map(|layer| layer.ffn.experts());
            let checked =
                check_kv_layers(&layers).and_then(|()| experts.try_for_each(|spec| check_experts(spec, "gpu")));
            Support { cpu: None, gpu: checked.err() }
        }
    }
}

fn readable(file: &GgufFile) -> Result<ModelSpec> {
    let spec = ModelSpec::from_gguf(file, None)?;
    ModelTensors::collect(file, &spec)?.head()?;
    load_tokenizer(file.metadata())?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ExpertSpec;
    use crate::testdata;

    #[test]
    fn mixtures_that_no_kernel_holds_are_refused() {
        let file = testdata::file("arch/deepseek2.gguf");
        let file = GgufFile::open(&file.0).unwrap();
        let Support { cpu: None, gpu: None } = support(&file) else { panic!("a golden model does not run") };
        let spec = readable(&file).unwrap();
        let experts = *spec.layers.iter().find_map(|layer| layer.ffn.experts()).unwrap();
        assert!(check_experts(&experts, "gpu").is_ok());
        for beyond in [ExpertSpec { num: 1 << 20, ..experts }, ExpertSpec { used: 1 << 20, ..experts }] {
            let problem = check_experts(&beyond, "gpu").unwrap_err().to_string();
            assert!(problem.contains("1048576") && problem.contains("device=\"cpu\""), "{problem}");
        }
    }
}
