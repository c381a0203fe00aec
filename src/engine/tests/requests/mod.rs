//! Tests of requests: their admission, their outputs and their ends.

mod admission;
mod cancel;
mod delivery;
mod ends;
mod feed;
mod forks;
mod handle;
mod lifecycle;
mod logprobs;
mod pooling;
mod selection;
