//! The simulator, driven by operations that shrink.

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any};
use proptest::{option, prop_oneof, proptest};

use super::sim::{self, Drafter, Request, Sim, SimConfig};
use crate::batch::GroupKind;
use crate::config::{GroupConfig, StateConfig};

#[derive(Debug, Clone)]
enum Op {
    Add(Request),
    Cancel(usize),
    Step,
    Fail,
    Withdraw,
    Interrupt,
    Reset,
}

fn request() -> impl Strategy<Value = Request> {
    let prompt = (0u32..3, 1u32..24).prop_map(|(text, len)| (0..len).map(|i| 1 + text * (i / 5)).collect());
    let drafter = (1usize..8, 1u64..9, any::<bool>());
    let drafter = drafter.prop_map(|(most, wrong, at_launch)| Drafter { most, wrong, at_launch });
    let drafter = option::weighted(0.5, drafter);
    let n = (1usize..7, 0u64..3);
    let from = (-1i32..2, option::weighted(0.5, 0u8..3));
    (prompt, 1usize..20, from, option::weighted(0.2, 0u8..2), extras(), any::<bool>(), n, drafter).prop_map(
        |(prompt, max_tokens, (priority, client), salt, (adapter, image, flags), all_logits, (n, seed), drafter): (
            Vec<u32>,
            _,
            _,
            _,
            Extras,
            _,
            _,
            _,
        )| Request {
            priority,
            client,
            salt,
            extras: sim::extras(adapter, image, flags, prompt.len()),
            all_logits,
            n,
            seed,
            drafter,
            ..Request::new(prompt, max_tokens)
        },
    )
}

/// Adapter, image and the image's flags, as `sim::extras` takes them.
type Extras = (Option<u32>, Option<(u8, u32, [u32; 2])>, (bool, bool));

fn extras() -> impl Strategy<Value = Extras> {
    let image = (0u8..3, 0u32..12, [1u32..4, 1u32..4]);
    (option::weighted(0.2, 0u32..2), option::weighted(0.3, image), (any::<bool>(), any::<bool>()))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => request().prop_map(Op::Add),
        1 => (0usize..16).prop_map(Op::Cancel),
        8 => Just(Op::Step),
        1 => Just(Op::Fail),
        1 => Just(Op::Withdraw),
        1 => Just(Op::Interrupt),
        1 => Just(Op::Reset),
    ]
}

/// State slots, from too few for all sequences to more than enough. The interval is in blocks.
fn states() -> impl Strategy<Value = Option<StateConfig>> {
    let states = (1usize..3, 1usize..16, 1usize..5).prop_map(|(slots_per_seq, others, interval)| StateConfig {
        num_slots: slots_per_seq + others,
        slots_per_seq,
        snapshot_interval: interval,
    });
    option::of(states)
}

fn config() -> impl Strategy<Value = SimConfig> {
    let kind = prop_oneof![
        4 => Just(GroupKind::Full),
        2 => (1u32..9).prop_map(|window| GroupKind::Sliding { window }),
        1 => (0u32..4).prop_map(|log| GroupKind::Chunked { size: 1 << log }),
    ];
    let group = (kind, 2usize..24).prop_map(|(kind, num_blocks)| GroupConfig { kind, num_blocks });
    let limits = (1usize..4).prop_flat_map(|most| (Just(most), 1..=most, 1usize..12));
    let groups = (vec(group, 1..4), states());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (1usize..6, groups, flags, 1usize..5, 0usize..12, limits, 1usize..4).prop_map(
        |(block_size, groups, flags, max_num_seqs, extra_tokens, partial_prefills, depth)| {
            let (prefix_caching, many_clients, draft_lags) = flags;
            let (groups, states) = groups;
            // The interval is in tokens.
            let states =
                states.map(|states| StateConfig { snapshot_interval: states.snapshot_interval * block_size, ..states });
            SimConfig {
                block_size,
                groups,
                states,
                prefix_caching,
                many_clients,
                max_num_seqs,
                max_num_batched_tokens: max_num_seqs + extra_tokens,
                max_model_len: 40,
                partial_prefills,
                depth,
                draft_lags,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(debug_assertions) { 1_000 } else { 20_000 }, ..ProptestConfig::default() })]

    /// The invariants hold after every operation. At the end each request has the tokens that it would have alone, and
    /// nothing is left.
    #[test]
    fn scheduler_serves_everyone(config in config(), ops in vec(op(), 1..80)) {
        let mut sim = Sim::new(config);
        for op in ops {
            match op {
                Op::Add(request) => drop(sim.add(&request)),
                Op::Cancel(k) => sim.cancel(k),
                Op::Step => sim.step(),
                Op::Fail => sim.fail_newest(),
                Op::Withdraw => sim.withdraw_newest(),
                Op::Interrupt => sim.interrupt(),
                Op::Reset => drop(sim.kv_cache.write().reset_prefix_cache()),
            }
            sim.check();
        }
        sim.drain();
    }
}
