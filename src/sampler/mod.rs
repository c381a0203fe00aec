//! Logits to tokens.
