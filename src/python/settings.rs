//! Settings of an engine by their names in Python: the `EngineSettings` of `rocmforge/settings.py`. Their defaults are
//! those of `config`.

use std::path::{Path, PathBuf};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::arrays::{integer, name_of, optional_integer, real, seconds, switch, wrong_type};
use super::host::engine_args;
use crate::config::{EngineArgs, KvCacheDtype, Platform};

/// Arguments for an engine in this interpreter; a setting that was not given has its default.
///
/// # Errors
/// `TypeError` for a name that is none, or a value of a wrong type; `InvalidRequest` for a value out of its range.
pub(super) fn args_with(py: Python<'_>, model: PathBuf, given: Option<&Bound<'_, PyDict>>) -> PyResult<EngineArgs> {
    let mut args = engine_args(py, model)?;
    let Some(given) = given else { return Ok(args) };
    for (name, value) in given {
        set(&mut args, name.cast::<PyString>()?.to_str()?, &value)?;
    }
    // Last, since it has to agree with the platform.
    if let Some(device) = given.get_item("device")? {
        args.choose_device("device", &name_of("device", &device)?)?;
    }
    Ok(args)
}

fn set(args: &mut EngineArgs, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let some = Some(value).filter(|value| !value.is_none());
    match name {
        "device" => {}
        "num_threads" => args.num_threads = optional_integer("num_threads", some)?,
        "max_model_len" => args.max_model_len = optional_integer("max_model_len", some)?,
        "max_num_seqs" => args.max_num_seqs = integer("max_num_seqs", value)?,
        "max_num_batched_tokens" => args.max_num_batched_tokens = optional_integer("max_num_batched_tokens", some)?,
        "block_size" => args.block_size = integer("block_size", value)?,
        "kv_cache_memory" => args.kv_cache_memory = optional_integer("kv_cache_memory", some)?,
        "kv_cache_dtype" => {
            args.kv_cache_dtype = KvCacheDtype::named("kv_cache_dtype", &name_of("kv_cache_dtype", value)?)?;
        }
        "enable_prefix_caching" => args.enable_prefix_caching = switch("enable_prefix_caching", value)?,
        "max_queue_size" => args.max_queue_size = integer("max_queue_size", value)?,
        "max_num_partial_prefills" => args.max_num_partial_prefills = integer("max_num_partial_prefills", value)?,
        "max_long_partial_prefills" => args.max_long_partial_prefills = integer("max_long_partial_prefills", value)?,
        "long_prefill_token_threshold" => {
            args.long_prefill_token_threshold = optional_integer("long_prefill_token_threshold", some)?;
        }
        "retention" => args.retention = seconds("retention", real("retention", value)?)?,
        "seed" => args.seed = optional_integer("seed", some)?,
        "batch_invariant" => args.batch_invariant = some.map(|on| switch("batch_invariant", on)).transpose()?,
        "self_test" => args.self_test = some.map(|on| switch("self_test", on)).transpose()?,
        "graphs" => args.gpu.graphs = some.map(|on| switch("graphs", on)).transpose()?,
        "vendor_blas" => args.gpu.vendor_blas = some.map(|on| switch("vendor_blas", on)).transpose()?,
        "cpu_isa" => args.cpu_isa = some.map(|isa| name_of("cpu_isa", isa)).transpose()?,
        "gpu_platform" => {
            let platform = some.map(|name| name_of("gpu_platform", name)).transpose()?;
            args.gpu.platform = platform.map(|name| Platform::named("gpu_platform", &name)).transpose()?;
        }
        "gpu_library" => args.gpu.library = some.map(|path| file("gpu_library", path)).transpose()?,
        "cache_dir" => args.gpu.cache_dir = some.map(|path| file("cache_dir", path)).transpose()?,
        "rocm_path" => args.gpu.rocm_path = some.map(|path| file("rocm_path", path)).transpose()?,
        "cuda_home" => args.gpu.cuda_home = some.map(|path| file("cuda_home", path)).transpose()?,
        _ => return Err(PyTypeError::new_err(format!("got an unexpected keyword argument '{name}'"))),
    }
    Ok(())
}

fn file(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    value.extract::<PathBuf>().map_err(|_| wrong_type(what, value, "a path"))
}

/// Every setting with its default.
#[derive(IntoPyObject)]
pub(super) struct Settings {
    device: &'static str,
    num_threads: Option<usize>,
    max_model_len: Option<usize>,
    max_num_seqs: usize,
    max_num_batched_tokens: Option<usize>,
    block_size: usize,
    kv_cache_memory: Option<u64>,
    kv_cache_dtype: &'static str,
    enable_prefix_caching: bool,
    max_queue_size: usize,
    max_num_partial_prefills: usize,
    max_long_partial_prefills: usize,
    long_prefill_token_threshold: Option<usize>,
    retention: f64,
    seed: Option<u64>,
    batch_invariant: Option<bool>,
    self_test: Option<bool>,
    graphs: Option<bool>,
    vendor_blas: Option<bool>,
    cpu_isa: Option<String>,
    gpu_platform: Option<&'static str>,
    gpu_library: Option<String>,
    cache_dir: Option<String>,
    rocm_path: Option<String>,
    cuda_home: Option<String>,
}

/// The defaults of all settings: what `LLM` shows as those of its arguments.
#[pyfunction]
pub(super) fn default_settings() -> Settings {
    let args = EngineArgs::new("");
    let path = |path: Option<&Path>| path.map(|path| path.display().to_string());
    Settings {
        device: args.device.name(),
        num_threads: args.num_threads,
        max_model_len: args.max_model_len,
        max_num_seqs: args.max_num_seqs,
        max_num_batched_tokens: args.max_num_batched_tokens,
        block_size: args.block_size,
        kv_cache_memory: args.kv_cache_memory,
        kv_cache_dtype: args.kv_cache_dtype.name(),
        enable_prefix_caching: args.enable_prefix_caching,
        max_queue_size: args.max_queue_size,
        max_num_partial_prefills: args.max_num_partial_prefills,
        max_long_partial_prefills: args.max_long_partial_prefills,
        long_prefill_token_threshold: args.long_prefill_token_threshold,
        retention: args.retention.as_secs_f64(),
        seed: args.seed,
        batch_invariant: args.batch_invariant,
        self_test: args.self_test,
        graphs: args.gpu.graphs,
        vendor_blas: args.gpu.vendor_blas,
        cpu_isa: args.cpu_isa.clone(),
        gpu_platform: args.gpu.platform.map(Platform::name),
        gpu_library: path(args.gpu.library.as_deref()),
        cache_dir: path(args.gpu.cache_dir.as_deref()),
        rocm_path: path(args.gpu.rocm_path.as_deref()),
        cuda_home: path(args.gpu.cuda_home.as_deref()),
    }
}
