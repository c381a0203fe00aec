//! Compares the cache with a model that only knows tokens: which sequence holds which block, and the content of each
//! block.

use std::collections::{HashMap, HashSet};

use proptest::collection;
use proptest::prelude::{Just, ProptestConfig, Strategy, TestCaseError, any};
use proptest::{option, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::events::Router;
use super::*;

#[derive(Debug, Clone)]
enum Op {
    Start { text: u32, len: u32, salted: bool },
    Append { seq: usize, token: u32 },
    Draft { seq: usize, drafts: Vec<u32>, num_right: usize },
    CatchUp { seq: usize, num_tokens: usize },
    Fork { seq: usize },
    End { seq: usize },
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u32..3, 1u32..20, any::<bool>()).prop_map(|(text, len, salted)| Op::Start { text, len, salted }),
        6 => (0usize..8, 0u32..2).prop_map(|(seq, token)| Op::Append { seq, token }),
        3 => (0usize..8, collection::vec(0u32..2, 1..9), 0usize..9).prop_map(|(seq, drafts, right)| {
            let num_right = right.min(drafts.len());
            Op::Draft { seq, drafts, num_right }
        }),
        3 => (0usize..8, 1usize..12).prop_map(|(seq, num_tokens)| Op::CatchUp { seq, num_tokens }),
        1 => (0usize..8).prop_map(|seq| Op::Fork { seq }),
        2 => (0usize..8).prop_map(|seq| Op::End { seq }),
        1 => Just(Op::Reset),
    ]
}

/// State slots, few and many.
fn states() -> impl Strategy<Value = Option<StateConfig>> {
    let states = (1usize..3, 1usize..12).prop_map(|(slots_per_seq, others)| StateConfig {
        num_slots: slots_per_seq + others,
        slots_per_seq,
        snapshot_interval: 60,
    });
    option::of(states)
}

/// Groups of any kinds, each with a pool of its own size.
fn groups() -> impl Strategy<Value = Vec<GroupConfig>> {
    let kind = prop_oneof![
        Just(GroupKind::Full),
        (1u32..9).prop_map(|window| GroupKind::Sliding { window }),
        (0u32..4).prop_map(|log| GroupKind::Chunked { size: 1 << log }),
    ];
    let group = (kind, 1usize..14).prop_map(|(kind, num_blocks)| GroupConfig { kind, num_blocks });
    collection::vec(group, 1..4)
}

type Content = Vec<u32>;

/// A sequence, and what the model knows of it: the prefix that ends with each of its blocks.
struct Held {
    seq: Seq,
    salted: bool,
}

impl Held {
    /// Returns the content that its block `i` must hold: everything up to the block's end, since K and V depend on all
    /// of it.
    fn content(&self, i: usize, block_size: usize) -> Content {
        self.prefix(((i + 1) * block_size).min(self.seq.tokens.len()))
    }

    /// Returns the state after `end` tokens.
    fn prefix(&self, end: usize) -> Content {
        std::iter::once(u32::from(self.salted)).chain(self.seq.tokens[..end].iter().copied()).collect()
    }

    /// Returns why no more of it was found, from all contents that the cache ever had.
    fn expected_miss(&self, ever_held: &HashSet<Content>, block_size: usize) -> PrefixMiss {
        let next = self.seq.num_hit / block_size;
        if (next + 1) * block_size >= self.seq.tokens.len() {
            return PrefixMiss::LastBlock;
        }
        match ever_held.contains(&self.content(next, block_size)) {
            true => PrefixMiss::Evicted,
            false => PrefixMiss::New,
        }
    }
}

/// The content of a device's memory: by group and block, by state slot, and by block of a full-attention group for a
/// draft model.
#[derive(Default)]
struct Memory(HashMap<(usize, u32), Content>, HashMap<u32, Content>, HashMap<(usize, u32), Content>, Lower);

/// The tiers below the device.
#[derive(Default)]
struct Lower {
    host: HashMap<ContentKey, Content>,
    /// `None` if there are no files.
    files: Option<HashMap<ContentKey, Content>>,
    /// Copies to the host that are under way: what is copied, and the content that has to arrive.
    copying: Vec<(Move, Content)>,
    /// The copies for which a step waited.
    copied: Vec<(ContentKey, Content)>,
    /// Copies to the device that are under way, with what arrives.
    loading: Vec<(Move, Content)>,
}

impl Lower {
    fn hold(&mut self, kv: &mut KvCache, key: ContentKey, content: Content, gone: Vec<ContentKey>) {
        self.host.insert(key, content);
        for key in gone {
            let content = self.host.remove(&key).unwrap();
            if let Some(files) = &mut self.files {
                files.insert(key, content);
                kv.note_files(&[key], &[]);
            }
        }
    }

    /// Reads what a prompt needs from files; a few of these have vanished.
    fn read_files(&mut self, kv: &mut KvCache, tokens: &[u32], salt: Option<&str>) {
        let mut chain = kv.new_chain(salt, SeqExtras::default());
        kv.extend_chain(&mut chain, &Tokens::new(tokens.into()));
        let (missing, num_tokens) = kv.missing_files(&chain, tokens.len());
        assert_eq!(missing.is_empty(), num_tokens == 0);
        for key in missing {
            let content = self.files.as_ref().unwrap()[&key].clone();
            if key.hash.short().is_multiple_of(7) {
                kv.note_files(&[], &[key]);
            } else {
                let gone = kv.keep_in_memory(key);
                self.hold(kv, key, content, gone);
            }
        }
    }
}

impl Memory {
    fn content(&self, kv: &KvCache, Move { key, block }: Move) -> Content {
        if key.pool < kv.groups.len() { self.0[&(key.pool, block)].clone() } else { self.1[&block].clone() }
    }

    /// Moves what a step that is about to run overwrites or reads.
    fn move_contents(&mut self, kv: &mut KvCache) {
        let Moves { saves, loads, overtakes } = kv.take_moves();
        let loads: Vec<_> = loads.into_iter().map(|load| (load, self.3.host[&load.key].clone())).collect();
        let is_ordered = overtakes || !saves.is_empty();
        self.begin_copies(kv, saves);
        if is_ordered {
            let copying = std::mem::take(&mut self.3.copying);
            self.3.copied.extend(copying.into_iter().map(|(copy, content)| (copy.key, content)));
        }
        self.3.loading.extend(loads);
    }

    /// Ends the oldest copies to the device, until `left` are left.
    fn end_loads(&mut self, kv: &mut KvCache, left: usize) {
        let num_ended = self.3.loading.len().saturating_sub(left);
        for (Move { key, block }, content) in self.3.loading.drain(..num_ended).collect::<Vec<_>>() {
            match key.pool < kv.groups.len() {
                true => self.0.insert((key.pool, block), content),
                false => self.1.insert(block, content),
            };
            kv.end_load(&key).unwrap();
        }
    }

    /// Begins copies of contents that are evicted soon.
    fn save_ahead(&mut self, kv: &mut KvCache) {
        let saves = kv.saves_ahead(&[3; 8], false);
        self.begin_copies(kv, saves);
    }

    fn begin_copies(&mut self, kv: &KvCache, saves: Vec<Move>) {
        let saves = saves.into_iter().map(|save| (save, self.content(kv, save))).collect::<Vec<_>>();
        self.3.copying.extend(saves);
    }

    /// Ends the oldest copies, until `left` are left. Checks that no block changed while it was copied.
    fn end_copies(&mut self, kv: &mut KvCache, left: usize) -> std::result::Result<(), TestCaseError> {
        let num_ended = self.3.copying.len().saturating_sub(left);
        for (copy, content) in &self.3.copying {
            prop_assert_eq!(&self.content(kv, *copy), content, "{:?}", copy);
        }
        let ended = self.3.copying.drain(..num_ended).map(|(copy, content)| (copy.key, content));
        for (key, content) in self.3.copied.drain(..).chain(ended).collect::<Vec<_>>() {
            let gone = kv.end_save(key);
            self.3.hold(kv, key, content, gone);
        }
        Ok(())
    }

    /// Runs the states of a sequence's last step, which may be interrupted.
    fn run(&mut self, held: &Held, stops: bool) -> std::result::Result<(), TestCaseError> {
        if let Some((position, slot)) = held.seq.read {
            prop_assert_eq!(&self.1[&slot], &held.prefix(position), "slot {} is read", slot);
        }
        for (position, slot) in &held.seq.wrote {
            let content = if stops { vec![u32::MAX] } else { held.prefix(*position) };
            self.1.insert(*slot, content);
        }
        Ok(())
    }

    fn write(&mut self, held: &Held, from: usize, block_size: usize) {
        for (g, table) in held.seq.blocks.tables.iter().enumerate() {
            for (i, id) in table.iter().enumerate().skip(from / block_size).filter(|(_, id)| !id.is_null()) {
                self.0.insert((g, id.0), held.content(i, block_size));
            }
        }
    }

    /// Computes a sequence with a draft model, from its `from`-th token up to those that count as drafted.
    fn write_drafted(&mut self, kv: &KvCache, held: &Held, from: usize, block_size: usize) {
        for (g, table) in held.seq.blocks.tables.iter().enumerate().filter(|(g, _)| is_full(kv, *g)) {
            let drafted = table.iter().enumerate().take(held.seq.num_drafted.div_ceil(block_size));
            for (i, id) in drafted.skip(from / block_size) {
                let content = held.prefix(((i + 1) * block_size).min(held.seq.num_drafted));
                let written = self.2.entry((g, id.0)).or_default();
                // Another owner of the block may have written more of the same text, but nothing beyond the block.
                if !written.starts_with(&content) || written.len() > full_len(i, block_size) {
                    *written = content;
                }
            }
        }
    }

    /// Checks that the draft model has computed what counts as drafted for each sequence and each marked block.
    fn check_drafted(&self, kv: &KvCache, live: &[Held], block_size: usize) -> std::result::Result<(), TestCaseError> {
        for held in live {
            for (g, table) in held.seq.blocks.tables.iter().enumerate().filter(|(g, _)| is_full(kv, *g)) {
                prop_assert!(held.seq.blocks.num_drafted() <= held.seq.num_drafted / block_size);
                for (i, id) in table.iter().enumerate().take(held.seq.num_drafted.div_ceil(block_size)) {
                    let least = held.prefix(((i + 1) * block_size).min(held.seq.num_drafted));
                    let written = &self.2[&(g, id.0)];
                    let is_own = written.starts_with(&least) && written.len() <= full_len(i, block_size);
                    prop_assert!(is_own, "group {}, entry {}: {:?}", g, i, written);
                }
            }
        }
        for g in (0..kv.groups.len()).filter(|g| is_full(kv, *g)) {
            let drafted = (0..).zip(&kv.groups[g].pool.blocks).filter(|(_, block)| block.is_drafted);
            for (id, _) in drafted {
                prop_assert_eq!(&self.2[&(g, id)], &self.0[&(g, id)], "group {}, block {}", g, id);
            }
        }
        Ok(())
    }

    /// Forgets the content of a sequence's last block beyond its tokens.
    fn cut(&mut self, held: &Held, block_size: usize) -> std::result::Result<(), TestCaseError> {
        let last = (held.seq.tokens.len() - 1) / block_size;
        for (g, table) in held.seq.blocks.tables.iter().enumerate() {
            if let Some(id) = table.get(last).filter(|id| !id.is_null()) {
                let written = self.0.get_mut(&(g, id.0)).unwrap();
                prop_assert!(written.starts_with(&held.content(last, block_size)), "group {}", g);
                written.truncate(1 + held.seq.tokens.len());
            }
        }
        Ok(())
    }

    fn check(&self, held: &Held, block_size: usize) -> std::result::Result<(), TestCaseError> {
        if let Some(slot) = held.seq.blocks.state_at(held.seq.num_computed) {
            prop_assert_eq!(&self.1[&slot.0], &held.prefix(held.seq.num_computed), "state in {:?}", slot);
        }
        for (g, table) in held.seq.blocks.tables.iter().enumerate() {
            for (i, id) in table.iter().enumerate().filter(|(_, id)| !id.is_null()) {
                prop_assert_eq!(&self.0[&(g, id.0)], &held.content(i, block_size), "group {}, entry {}", g, i);
            }
        }
        Ok(())
    }

    /// Checks that a router that read all events knows exactly the contents that can be hit.
    fn check_router(&self, router: &Router, kv: &KvCache) -> std::result::Result<(), TestCaseError> {
        for ((g, hash), block) in &router.0 {
            let id = kv.groups[*g].pool.index.get(hash);
            prop_assert!(id.is_some(), "group {}: {:?} cannot be hit", g, block);
            // A block may have left a window before the model recorded it.
            if kv.groups[*g].kind != GroupKind::Full {
                continue;
            }
            let content = &self.0[&(*g, id.unwrap().0)];
            prop_assert!(content.ends_with(&block.token_ids));
            prop_assert_eq!(content[0], u32::from(block.salt.is_some()));
            if let Some(prefix) = router.prefix(*g, *hash) {
                prop_assert_eq!(&content[1..], &prefix);
            }
        }
        let contents = |group: &Group| group.pool.index.num_contents();
        prop_assert_eq!(router.0.len(), kv.groups.iter().map(contents).sum::<usize>());
        Ok(())
    }
}

/// Returns the length of the content of a sequence's block `i` once it is full.
fn full_len(i: usize, block_size: usize) -> usize {
    1 + (i + 1) * block_size
}

fn is_full(kv: &KvCache, group: usize) -> bool {
    kv.groups[group].kind == GroupKind::Full
}

/// The draft model's layers of blocks are not copied, so it computes that part again.
fn cut_drafted(held: &mut Held, copies: &[BlockCopy], from: usize, block_size: usize) {
    if !copies.is_empty() {
        held.seq.num_drafted = held.seq.num_drafted.min(from / block_size * block_size);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(debug_assertions) { 2_000 } else { 20_000 }, ..ProptestConfig::default() })]

    /// K5, K19, K20: after every operation the invariants hold, the owners are exactly the live sequences, and each
    /// finds its own content in its blocks.
    #[test]
    fn cache_equals_its_model(
        groups in groups(),
        states in states(),
        block_size in 1usize..5,
        ops in collection::vec(op(), 1..60),
        log_capacity in prop_oneof![1usize..6, Just(1000)],
        reads_each in 1usize..8,
        // Contents of host memory, and whether there are files.
        offload in option::of((1u64..30, any::<bool>())),
    ) {
        let mut kv = cache_with(&groups, states, block_size);
        if let Some((contents, _)) = offload {
            let num_pools = groups.len() + usize::from(states.is_some());
            let (content_bytes, num_ahead) = (vec![90; num_pools], vec![4; num_pools]);
            kv.enable_offload(OffloadConfig { memory: (contents + 2 * num_pools as u64) * 250, content_bytes, num_ahead }).unwrap();
        }
        kv.record_events(log_capacity).unwrap();
        let mut router = Router::default();
        let mut memory = Memory::default();
        memory.3.files = offload.and_then(|(_, has_files)| has_files.then(HashMap::new));
        let mut live: Vec<Held> = Vec::new();
        let mut ever_held: HashSet<Content> = HashSet::new();
        for (time, op) in ops.into_iter().enumerate() {
            kv.tick(time as u64);
            let len = live.len();
            match op {
                Op::Start { text: which, len, salted } => {
                    let tokens: Vec<u32> = (0..len).map(|i| which * (i / 6)).collect();
                    memory.3.read_files(&mut kv, &tokens, salted.then_some("salt"));
                    // Some sequences do not wait for the end.
                    Seq::load(&mut kv, &tokens, salted.then_some("salt"));
                    memory.move_contents(&mut kv);
                    memory.end_loads(&mut kv, time % 3);
                    let before = (kv.block_map(0), kv.stats());
                    match Seq::start_salted(&mut kv, &tokens, salted.then_some("salt")) {
                        None => prop_assert_eq!(before, (kv.block_map(0), kv.stats())),
                        Some(seq) => {
                            prop_assert!(seq.num_hit < tokens.len());
                            let mut held = Held { seq, salted };
                            let from = held.seq.num_hit;
                            let miss = kv.count_prefix_query(&held.seq.chain, tokens.len(), from, held.seq.num_held);
                            if miss != PrefixMiss::NoSnapshot {
                                let expected = held.expected_miss(&ever_held, block_size);
                                let is_below = matches!(miss, PrefixMiss::HostMemory | PrefixMiss::Files);
                                let may_be = states.is_some() && miss == PrefixMiss::Evicted || is_below && offload.is_some();
                                prop_assert!(miss == expected || may_be, "{:?}, not {:?}", miss, expected);
                            }
                            memory.move_contents(&mut kv);
                            memory.write(&held, from, block_size);
                            memory.check(&held, block_size)?;
                            if states.is_some_and(|states| states.slots_per_seq == 2) {
                                // The step is interrupted and repeated.
                                held.seq.begin(&mut kv);
                                memory.move_contents(&mut kv);
                                memory.run(&held, true)?;
                                kv.take_back_step(&mut held.seq.blocks, from).unwrap();
                            }
                            held.seq.begin(&mut kv);
                            memory.move_contents(&mut kv);
                            held.seq.compute(&mut kv);
                            memory.run(&held, false)?;
                            live.push(held);
                        }
                    }
                }
                Op::Append { seq, token } if len > 0 => {
                    let held = &mut live[seq % len];
                    let before = (kv.block_map(0), held.seq.table());
                    match held.seq.grow(&mut kv, token) {
                        None => prop_assert_eq!(before, (kv.block_map(0), held.seq.table())),
                        Some(copies) => {
                            memory.move_contents(&mut kv);
                            let from = held.seq.tokens.len() - 1;
                            cut_drafted(held, &copies, from, block_size);
                            for copy in copies {
                                let content = memory.0[&(copy.group as usize, copy.src)].clone();
                                memory.0.insert((copy.group as usize, copy.dst), content);
                            }
                            memory.write(held, from, block_size);
                            held.seq.begin(&mut kv);
                            memory.move_contents(&mut kv);
                            held.seq.compute(&mut kv);
                            memory.run(held, false)?;
                        }
                    }
                }
                Op::Draft { seq, drafts, num_right } if len > 0 => {
                    let held = &mut live[seq % len];
                    let (before, from) = ((kv.block_map(0), held.seq.table()), held.seq.tokens.len());
                    match held.seq.draft(&mut kv, &drafts) {
                        None => prop_assert_eq!(before, (kv.block_map(0), held.seq.table())),
                        Some(copies) => {
                            memory.move_contents(&mut kv);
                            cut_drafted(held, &copies, from, block_size);
                            for copy in copies {
                                let content = memory.0[&(copy.group as usize, copy.src)].clone();
                                memory.0.insert((copy.group as usize, copy.dst), content);
                            }
                            memory.write(held, from, block_size);
                            memory.run(held, false)?;
                            // A model with states has none before the step's first token.
                            let least = usize::from(states.is_some());
                            held.seq.keep(&mut kv, from + num_right.max(least));
                            memory.cut(held, block_size)?;
                            for table in &held.seq.blocks.tables {
                                prop_assert_eq!(table.len(), held.seq.tokens.len().div_ceil(block_size));
                            }
                        }
                    }
                }
                Op::CatchUp { seq, num_tokens } if len > 0 => {
                    let held = &mut live[seq % len];
                    let from = held.seq.num_drafted;
                    held.seq.catch_up(&mut kv, held.seq.num_computed.min(from + num_tokens));
                    memory.write_drafted(&kv, held, from, block_size);
                }
                Op::Fork { seq } if len > 0 => {
                    let (seq, salted) = (live[seq % len].seq.fork(&mut kv), live[seq % len].salted);
                    live.push(Held { seq, salted });
                }
                Op::End { seq } if len > 0 => live.swap_remove(seq % len).seq.end(&mut kv),
                Op::Reset => {
                    let is_idle = counts(&kv).2 + kv.stats().state_slots_owned == 0;
                    prop_assert_eq!(kv.reset_prefix_cache(), is_idle);
                    if is_idle {
                        // A sequence at the start of a chunk owns no block, and the cache forgets its tokens.
                        live.drain(..).for_each(|held| held.seq.end(&mut kv));
                        ever_held.clear();
                        memory.3.host.clear();
                        memory.3.copying.clear();
                        memory.3.copied.clear();
                    }
                }
                _ => {}
            }
            if offload.is_some() {
                memory.save_ahead(&mut kv);
                memory.end_copies(&mut kv, time % 3)?;
                memory.end_loads(&mut kv, time % 2);
                prop_assert_eq!(kv.memory_contents().into_iter().collect::<HashSet<_>>(), memory.3.host.keys().copied().collect());
            }
            kv.check_integrity().map_err(|error| TestCaseError::fail(error.to_string()))?;
            let owned = live.iter().map(|held| &held.seq.blocks);
            kv.check_owners(owned).map_err(|error| TestCaseError::fail(error.to_string()))?;
            memory.check_drafted(&kv, &live, block_size)?;
            for held in &live {
                memory.check(held, block_size)?;
                // A hit at the start of a chunk may skip blocks that no sequence has computed.
                let computed = held.seq.num_hit / block_size..held.seq.tokens.len() / block_size;
                ever_held.extend(computed.map(|i| held.content(i, block_size)));
            }
            if time % reads_each == 0 {
                router.read(&mut kv);
                memory.check_router(&router, &kv)?;
            }
        }
        live.clear();
        kv.abandon_loads();
        kv.tick(0);
        prop_assert_eq!((counts(&kv).2, kv.stats().state_slots_owned), (0, 0));
    }
}
