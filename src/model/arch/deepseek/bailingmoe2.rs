//! `bailingmoe2`: Ling 2.0 and Ring 2.0. Like `dots1`, with a fused q, k and v tensor, half of each head rotated, and
//! grouped experts. All three follow from the file.

pub(super) use super::dots1::spec;
