//! The settings of an engine by user-visible name; this is the only list of these names. All code that takes settings
//! by name, or shows their defaults, uses it.

use std::path::PathBuf;
use std::time::Duration;

use super::{ComputeDtype, EngineArgs, KvCacheDtype, Platform, SpeculativeConfig};

/// A reference to a setting within `EngineArgs`, by the kind of its value. `None` in an `Option` lets the engine
/// choose.
pub enum Setting<'a> {
    /// Refers to all arguments, since `EngineArgs::choose_device` sets several of them.
    Device(&'a mut EngineArgs),
    Count(&'a mut usize),
    OptionalCount(&'a mut Option<usize>),
    /// A number of bytes, or a seed.
    OptionalNumber(&'a mut Option<u64>),
    Switch(&'a mut bool),
    OptionalSwitch(&'a mut Option<bool>),
    Seconds(&'a mut Duration),
    OptionalText(&'a mut Option<String>),
    OptionalFile(&'a mut Option<PathBuf>),
    CacheType(&'a mut KvCacheDtype),
    ComputeType(&'a mut ComputeDtype),
    OptionalPlatform(&'a mut Option<Platform>),
    Speculation(&'a mut Option<SpeculativeConfig>),
}

/// A setting's name, and a function that returns its reference.
type Named = (&'static str, fn(&mut EngineArgs) -> Setting<'_>);

/// Sorted in the order in which users see them.
pub const SETTINGS: [Named; 36] = [
    ("device", |args| Setting::Device(args)),
    ("num_threads", |args| Setting::OptionalCount(&mut args.num_threads)),
    ("max_model_len", |args| Setting::OptionalCount(&mut args.max_model_len)),
    ("max_num_seqs", |args| Setting::OptionalCount(&mut args.max_num_seqs)),
    ("max_num_batched_tokens", |args| Setting::OptionalCount(&mut args.max_num_batched_tokens)),
    ("block_size", |args| Setting::Count(&mut args.block_size)),
    ("kv_cache_memory", |args| Setting::OptionalNumber(&mut args.kv_cache_memory)),
    ("gpu_memory_limit", |args| Setting::OptionalNumber(&mut args.gpu.memory_limit)),
    ("gpu_layers", |args| Setting::OptionalCount(&mut args.gpu.layers)),
    ("cpu_experts", |args| Setting::OptionalCount(&mut args.gpu.cpu_experts)),
    ("expert_cache", |args| Setting::OptionalNumber(&mut args.gpu.expert_cache)),
    ("kv_cache_dtype", |args| Setting::CacheType(&mut args.kv_cache_dtype)),
    ("enable_prefix_caching", |args| Setting::Switch(&mut args.enable_prefix_caching)),
    ("kv_offload_memory", |args| Setting::OptionalNumber(&mut args.kv_offload_memory)),
    ("kv_offload_dir", |args| Setting::OptionalFile(&mut args.kv_offload_dir)),
    ("kv_offload_disk", |args| Setting::OptionalNumber(&mut args.kv_offload_disk)),
    ("max_queue_size", |args| Setting::Count(&mut args.max_queue_size)),
    ("max_num_partial_prefills", |args| Setting::Count(&mut args.max_num_partial_prefills)),
    ("max_long_partial_prefills", |args| Setting::Count(&mut args.max_long_partial_prefills)),
    ("long_prefill_token_threshold", |args| Setting::OptionalCount(&mut args.long_prefill_token_threshold)),
    ("state_snapshot_interval", |args| Setting::OptionalCount(&mut args.state_snapshot_interval)),
    ("mmproj", |args| Setting::OptionalFile(&mut args.mmproj)),
    ("speculative_config", |args| Setting::Speculation(&mut args.speculative_config)),
    ("retention", |args| Setting::Seconds(&mut args.retention)),
    ("seed", |args| Setting::OptionalNumber(&mut args.seed)),
    ("batch_invariant", |args| Setting::OptionalSwitch(&mut args.batch_invariant)),
    ("self_test", |args| Setting::OptionalSwitch(&mut args.self_test)),
    ("graphs", |args| Setting::OptionalSwitch(&mut args.gpu.graphs)),
    ("vendor_blas", |args| Setting::OptionalSwitch(&mut args.gpu.vendor_blas)),
    ("compute_dtype", |args| Setting::ComputeType(&mut args.gpu.compute_dtype)),
    ("cpu_isa", |args| Setting::OptionalText(&mut args.cpu_isa)),
    ("gpu_platform", |args| Setting::OptionalPlatform(&mut args.gpu.platform)),
    ("gpu_library", |args| Setting::OptionalFile(&mut args.gpu.library)),
    ("cache_dir", |args| Setting::OptionalFile(&mut args.gpu.cache_dir)),
    ("rocm_path", |args| Setting::OptionalFile(&mut args.gpu.rocm_path)),
    ("cuda_home", |args| Setting::OptionalFile(&mut args.gpu.cuda_home)),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdata::field_names;

    #[test]
    fn every_argument_is_a_setting_by_its_own_name() {
        let args = EngineArgs::new("m");
        let names = || SETTINGS.iter().map(|(name, _)| *name);
        let found = field_names(&args);
        assert!(found.contains(&"seed".to_owned()), "{found:?}");
        // The model is a separate argument, and the GPU options have their own names.
        for field in found.iter().filter(|field| !["model", "gpu"].contains(&field.as_str())) {
            assert_eq!(names().filter(|name| name == field).count(), 1, "{field}");
        }
        // Users do not set these GPU options. The bindings set `python_path` and `helper`, a device's name has its
        // number, variables of other libraries are only reported, two switches are resolved, and the rest is for tests.
        let others = ["python_path", "device_index", "helper", "without_embedded", "batch_invariant", "self_test"];
        let others =
            [&others[..], &["driver_variables", "loader_folders", "tuning", "is_helper", "without_barrier"]].concat();
        for field in field_names(&args.gpu).iter().filter(|field| !others.contains(&field.as_str())) {
            let prefixed = format!("gpu_{field}");
            assert_eq!(names().filter(|name| name == field || *name == prefixed).count(), 1, "{field}");
        }
    }

    #[test]
    fn each_name_leads_to_a_place_of_its_own() {
        let address = |(_, of): &Named| {
            let mut args = EngineArgs::new("m");
            let start = (&raw const args).addr();
            let place = match of(&mut args) {
                Setting::Device(args) => (&raw const args.device).addr(),
                Setting::Count(place) => (&raw const *place).addr(),
                Setting::OptionalCount(place) => (&raw const *place).addr(),
                Setting::OptionalNumber(place) => (&raw const *place).addr(),
                Setting::Switch(place) => (&raw const *place).addr(),
                Setting::OptionalSwitch(place) => (&raw const *place).addr(),
                Setting::Seconds(place) => (&raw const *place).addr(),
                Setting::OptionalText(place) => (&raw const *place).addr(),
                Setting::OptionalFile(place) => (&raw const *place).addr(),
                Setting::CacheType(place) => (&raw const *place).addr(),
                Setting::ComputeType(place) => (&raw const *place).addr(),
                Setting::OptionalPlatform(place) => (&raw const *place).addr(),
                Setting::Speculation(place) => (&raw const *place).addr(),
            };
            place - start
        };
        let places: std::collections::HashSet<usize> = SETTINGS.iter().map(address).collect();
        assert_eq!(places.len(), SETTINGS.len());
    }
}
