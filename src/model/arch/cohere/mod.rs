//! Command, Aya and their successors.

mod cohere2;
mod cohere2moe;
mod command_r;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "cohere2", spec: cohere2::spec },
    Architecture { name: "cohere2moe", spec: cohere2moe::spec },
    Architecture { name: "command-r", spec: command_r::spec },
];
