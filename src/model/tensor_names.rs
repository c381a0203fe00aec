//! Names of tensors in files that do not use llama.cpp's usual names.

use std::borrow::Cow;

/// Returns the name of a tensor in files of an architecture, by its usual name.
pub(super) fn in_file<'n>(architecture: &str, name: &'n str) -> Cow<'n, str> {
    match architecture {
        // The names leave room for a decoder beside the encoder.
        "t5encoder" if name.starts_with("blk.") || name.starts_with("output_norm.") => {
            format!("enc.{}", name.replace(".attn_output.", ".attn_o.")).into()
        }
        _ => name.into(),
    }
}
