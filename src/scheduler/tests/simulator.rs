//! Long random runs of the simulator.

use super::sim::{self, Drafter, Request, Sim, SimConfig, mix};
use crate::batch::{GroupKind, SeqExtras};
use crate::config::{GroupConfig, StateConfig};

/// A generator with the same numbers everywhere and for ever.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (mix(0x5EED, self.0) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn random_config(random: &mut Random) -> SimConfig {
    let sliding = GroupKind::Sliding { window: 1 + random.below(12) as u32 };
    let kinds = match random.below(6) {
        0 => vec![sliding],
        1 => vec![GroupKind::Full, sliding],
        2 => vec![GroupKind::Sliding { window: 1 + random.below(20) as u32 }, GroupKind::Full, sliding],
        3 => vec![GroupKind::Full, sliding, GroupKind::Full],
        _ => vec![GroupKind::Full],
    };
    let groups = kinds.into_iter().map(|kind| GroupConfig { kind, num_blocks: 8 + random.below(40) }).collect();
    let (max_num_seqs, block_size) = (1 + random.below(8), 1 + random.below(6));
    SimConfig {
        block_size,
        groups,
        states: random.one_in(2).then(|| random_states(random, block_size)),
        prefix_caching: !random.one_in(6),
        many_clients: random.one_in(2),
        max_num_seqs,
        max_num_batched_tokens: max_num_seqs + random.below(24),
        max_model_len: 4 + random.below(60),
        partial_prefills: random_limits(random),
        depth: 1 + random.below(3),
        draft_lags: random.one_in(2),
    }
}

/// Returns anything from too few slots for the sequences to as many snapshots as blocks.
fn random_states(random: &mut Random, block_size: usize) -> StateConfig {
    let slots_per_seq = 1 + random.below(2);
    let num_slots = slots_per_seq + 1 + random.below(40);
    StateConfig { num_slots, slots_per_seq, snapshot_interval: block_size * (1 + random.below(4)) }
}

fn random_limits(random: &mut Random) -> (usize, usize, usize) {
    let max_partial = 1 + random.below(4);
    (max_partial, 1 + random.below(max_partial), 1 + random.below(20))
}

fn random_request(random: &mut Random) -> Request {
    // Prompts are prefixes of a few texts, so that much is shared.
    let (text, length) = (random.below(3) as u64, 1 + random.below(40));
    let prompt: Vec<u32> = (0..length as u64).map(|i| (mix(text, i / 7) % 31) as u32).collect();
    let extras = random_extras(random, prompt.len());
    Request {
        prompt,
        max_tokens: 1 + random.below(24),
        priority: random.below(3) as i32 - 1,
        client: random.one_in(2).then(|| random.below(4) as u8),
        salt: random.one_in(5).then(|| random.below(2) as u8),
        extras,
        all_logits: random.one_in(8),
        n: if random.one_in(4) { 1 + random.below(6) } else { 1 },
        seed: random.below(4) as u64,
        drafter: random.one_in(2).then(|| Drafter {
            most: [1, 3, 7, 7][random.below(4)],
            wrong: 1 << random.below(7),
            at_launch: random.one_in(2),
        }),
    }
}

fn random_extras(random: &mut Random, prompt_len: usize) -> SeqExtras {
    let adapter = random.one_in(6).then(|| random.below(2) as u32);
    let sides = [1 + random.below(4) as u32, 1 + random.below(4) as u32];
    let image = (random.below(3) as u8, random.below(24) as u32, sides);
    sim::extras(adapter, random.one_in(3).then_some(image), (random.one_in(2), random.one_in(2)), prompt_len)
}

/// Events counted in all worlds.
#[derive(Debug, Default)]
struct Counts {
    steps: u64,
    preemptions: u64,
    hits: u64,
    /// Hits and evicted snapshots of models with recurrent states.
    state_hits: u64,
    state_evictions: u64,
    /// Rejected drafts of models with recurrent states.
    state_rejected: u64,
    accepted: [u64; 9],
    rejected: u64,
    at_launch: u64,
    /// Tokens that a draft model lacked when it drafted, and that it computed without draft tokens.
    behind: u64,
    caught_up: u64,
    /// Hit tokens that the draft model had computed, and had not.
    drafted_hits: [u64; 2],
}

/// Runs `num_worlds` random worlds of about `num_steps` steps each.
fn run(seed: u64, num_worlds: usize, num_steps: usize) -> Counts {
    let mut random = Random(seed << 32);
    let mut counts = Counts::default();
    for _ in 0..num_worlds {
        let mut sim = Sim::new(random_config(&mut random));
        for i in 0..num_steps {
            if sim.num_live() < 12 && random.one_in(2) {
                sim.add(&random_request(&mut random));
            }
            if random.one_in(20) {
                sim.cancel(random.below(64));
            }
            if random.one_in(50) {
                sim.fail_newest();
            }
            if random.one_in(50) {
                sim.withdraw_newest();
            }
            if random.one_in(50) {
                sim.interrupt();
            }
            if random.one_in(200) {
                sim.kv_cache.write().reset_prefix_cache();
            }
            sim.step();
            if i % 16 == 0 {
                sim.check();
            }
        }
        sim.drain();
        counts.steps += sim.num_steps;
        counts.preemptions += sim.scheduler.num_preemptions();
        let stats = sim.kv_cache.read().stats();
        counts.hits += stats.prefix_cache_hits;
        counts.state_hits += if stats.state_slots_total > 0 { stats.prefix_cache_hits } else { 0 };
        counts.state_evictions += stats.state_evictions;
        counts.accepted.iter_mut().zip(sim.num_accepted).for_each(|(sum, count)| *sum += count);
        counts.rejected += sim.num_rejected;
        counts.at_launch += sim.num_at_launch;
        counts.behind += sim.num_behind;
        counts.caught_up += sim.num_caught_up;
        counts.drafted_hits.iter_mut().zip(sim.num_drafted_hits).for_each(|(sum, count)| *sum += count);
        counts.state_rejected += if stats.state_slots_total > 0 { sim.num_rejected } else { 0 };
    }
    counts
}

/// K14, K20, K22, S9, S12, S16: every sequence reads only its own K, V and recurrent states, and generates the same as
/// alone. At the end nothing is left. Others may arrive, be cancelled, fork, or be in failed or interrupted steps.
/// Steps may be in flight, pools much too small, and some drafts wrong.
#[test]
fn every_sequence_generates_what_it_would_alone() {
    let (num_worlds, num_steps) = if cfg!(debug_assertions) { (500, 400) } else { (5_000, 1_000) };
    let counts = run(1, num_worlds, num_steps);
    // The worlds make these events common; otherwise nothing would be tested.
    assert!(counts.steps > (num_worlds * num_steps / 3) as u64, "{counts:?}");
    assert!(counts.preemptions > num_worlds as u64, "{counts:?}");
    assert!(counts.hits > 10 * num_worlds as u64, "{counts:?}");
    assert!(counts.state_hits > 10 * num_worlds as u64, "{counts:?}");
    assert!(counts.state_evictions > 10 * num_worlds as u64, "{counts:?}");
    // Half of the worlds have states.
    assert!(counts.state_rejected > 15 * num_worlds as u64, "{counts:?}");
    assert!(counts.rejected > 25 * num_worlds as u64, "{counts:?}");
    assert!(counts.at_launch > 25 * num_worlds as u64, "{counts:?}");
    assert!(counts.behind > 5 * num_worlds as u64 && counts.caught_up > 25 * num_worlds as u64, "{counts:?}");
    assert!(counts.drafted_hits.iter().all(|count| *count > num_worlds as u64), "{counts:?}");
    assert!(counts.accepted[1..].iter().all(|count| *count > num_worlds as u64 / 4), "{counts:?}");
}
