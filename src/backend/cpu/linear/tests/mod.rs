//! Tests of the linear kernels.
