//! The engine over a scripted executor.

mod admission;
mod cancel;
mod delivery;
mod device_failures;
mod drafter;
mod ends;
mod failures;
mod fake;
mod forks;
mod handle;
mod interrupts;
mod latent;
mod lifecycle;
mod logprobs;
mod pooling;
mod rankers;
mod room;
mod selection;
mod speculation;
mod states;
mod stress;
mod structured;
mod support;
mod text;
mod thoughts;
mod tiny;
