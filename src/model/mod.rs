//! Models: ONE decoder, parameterised by a `DecoderSpec` that is read from the file.
