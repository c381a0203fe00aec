//! The paged, prefix-sharing KV cache's bookkeeping: integers only.
