//! Keys with several names: llama.cpp's, and those of older files and of Ollama's converters.

/// Alternative names of keys: the architecture, or "" for all; llama.cpp's name; the alternative name.
const OTHER_NAMES: [(&str, &str, &str); 9] = [
    ("", "attention.key_length", "attention.head_dim"),
    ("", "expert_weights_norm", "norm_top_k_prob"),
    ("", "rope.freq_base", "rope.global.freq_base"),
    ("", "rope.freq_base_swa", "rope.local.freq_base"),
    // Name in files that were made before 2023-11.
    ("", "rope.scaling.factor", "rope.scale_linear"),
    ("", "rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast"),
    ("", "rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow"),
    ("mistral3", "rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim"),
    ("mistral3", "attention.temperature_scale", "rope.scaling_beta"),
];

/// Returns the alternative names of a key in files of an architecture.
pub(super) fn other_names(architecture: &str, key: &str) -> Vec<&'static str> {
    let is_of = |of: &str| of.is_empty() || of == architecture;
    OTHER_NAMES.iter().filter(|(of, name, _)| is_of(of) && *name == key).map(|&(_, _, other)| other).collect()
}
