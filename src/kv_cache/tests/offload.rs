//! The index of the tiers below the device, in chosen situations. `prop` has the random ones.

use super::*;

const BYTES: u64 = 90;

/// Returns a cache whose host memory has room for `contents` blocks.
fn offloading(groups: &[GroupConfig], contents: u64) -> KvCache {
    let mut kv = cache_of(groups, 4);
    let (content_bytes, num_ahead) = (vec![BYTES; groups.len()], vec![2; groups.len()]);
    let config = OffloadConfig { memory: contents * 250, content_bytes, num_ahead };
    kv.enable_offload(config).unwrap();
    kv
}

/// Ends all copies of `saves` and returns what host memory lost for them.
fn arrive(kv: &mut KvCache, saves: Vec<Move>) -> Vec<ContentKey> {
    saves.into_iter().flat_map(|save| kv.end_save(save.key)).collect()
}

/// Runs a text and ends it. Everything evicted for it arrives on the host.
fn run(kv: &mut KvCache, which: u32, len: u32) -> (usize, Moves) {
    Seq::load(kv, &text(which, len), None);
    let loaded = kv.take_moves();
    loaded.loads.iter().for_each(|load| kv.end_load(&load.key).unwrap());
    let seq = Seq::run(kv, &text(which, len));
    let (num_hit, mut moves) = (seq.num_hit, kv.take_moves());
    seq.end(kv);
    moves.saves.splice(0..0, loaded.saves);
    (num_hit, Moves { loads: loaded.loads, overtakes: moves.overtakes || loaded.overtakes, ..moves })
}

#[test]
fn evicted_blocks_are_saved_and_loaded_again() {
    let mut kv = offloading(&[full(5)], 10);
    assert_eq!(run(&mut kv, 1, 17).0, 0);
    let (_, moves) = run(&mut kv, 2, 17);
    // The four full blocks of the first text were evicted, last first.
    assert_eq!((moves.saves.len(), moves.loads.len(), moves.overtakes), (4, 0, false));
    assert!(arrive(&mut kv, moves.saves).is_empty());
    let (num_hit, moves) = run(&mut kv, 1, 17);
    assert_eq!((num_hit, moves.loads.len()), (16, 4));
    // The block of the fifth part is evicted without content. The others make room for the loads.
    assert_eq!(moves.saves.len(), 4);
    let stats = kv.offload_stats();
    assert_eq!((stats.saved, stats.loaded), (4, 4));
    assert_eq!((stats.memory_contents, stats.memory_bytes), (4, 4 * 250));
}

/// The next block in the order of eviction is copied ahead. Its eviction then needs no copy, or overtakes it.
#[test]
fn copies_are_made_ahead() {
    let mut kv = offloading(&[full(5)], 10);
    run(&mut kv, 1, 20);
    let ahead = kv.saves_ahead(&[9], false);
    assert_eq!(ahead.len(), 2);
    assert!(kv.saves_ahead(&[9], false).is_empty(), "both are under way");
    ahead.iter().for_each(|save| kv.give_up_save(&save.key));
    assert_eq!((kv.offload_stats().lost, kv.saves_ahead(&[9], false)), (0, ahead.clone()), "the device has them");
    let (_, moves) = run(&mut kv, 2, 5);
    assert!(moves.overtakes && moves.saves.is_empty());
    arrive(&mut kv, ahead);
    let (_, moves) = run(&mut kv, 3, 5);
    assert!(!moves.overtakes && moves.saves.len() == 1);
    assert_eq!(kv.saves_ahead(&[1], true).len(), 1);
}

/// Host memory keeps what was used last. Its bytes are bounded, and the rest can come from files.
#[test]
fn host_memory_is_bounded() {
    let mut kv = offloading(&[full(5)], 6);
    run(&mut kv, 1, 17);
    let mut gone_first = Vec::new();
    for which in 2..4 {
        let (_, moves) = run(&mut kv, which, 17);
        let gone = arrive(&mut kv, moves.saves);
        assert_eq!(gone.len(), if which == 2 { 0 } else { 2 });
        kv.note_files(&gone, &[]);
        gone_first.extend(gone);
    }
    let mut chain = kv.new_chain(None, SeqExtras::default());
    kv.extend_chain(&mut chain, &Tokens::new(text(1, 17).into()));
    // The last two blocks of the first text went first.
    let (missing, num_tokens) = kv.missing_files(&chain, 17);
    assert_eq!((missing.len(), num_tokens), (2, 8));
    for key in missing {
        assert!(gone_first.contains(&key));
        kv.keep_in_memory(key);
        kv.check_integrity().unwrap();
    }
    // The first two blocks stayed, since they are needed as well.
    assert_eq!(kv.missing_files(&chain, 17).0.len(), 0);
    assert_eq!(kv.offload_stats().memory_bytes, 6 * 250);
    let (num_hit, moves) = run(&mut kv, 1, 17);
    assert_eq!((num_hit, moves.loads.len()), (16, 4));
}

/// Host memory has the beginning of a prefix and no room for its end. Reading that would push the beginning out.
#[test]
fn reading_files_keeps_the_rest_of_the_prefix() {
    let mut kv = offloading(&[full(9)], 6);
    run(&mut kv, 1, 33);
    let (_, moves) = run(&mut kv, 2, 33);
    let keys: Vec<ContentKey> = moves.saves.iter().map(|save| save.key).collect();
    let gone = arrive(&mut kv, moves.saves);
    // The end of the first text was evicted first.
    assert_eq!(gone, keys[..2]);
    kv.note_files(&gone, &[]);
    let mut chain = kv.new_chain(None, SeqExtras::default());
    kv.extend_chain(&mut chain, &Tokens::new(text(1, 33).into()));
    assert_eq!(kv.missing_files(&chain, 33), (Vec::new(), 0));
    assert_eq!(run(&mut kv, 1, 33).0, 24);
}

/// Contents of files that would take more than half of host memory are not read; a part of the prefix is.
#[test]
fn files_do_not_flood_host_memory() {
    let mut kv = offloading(&[full(9)], 5);
    run(&mut kv, 1, 33);
    let (_, moves) = run(&mut kv, 2, 33);
    let keys: Vec<ContentKey> = moves.saves.iter().map(|save| save.key).collect();
    keys.iter().for_each(|key| kv.give_up_save(key));
    kv.note_files(&keys, &[]);
    let mut chain = kv.new_chain(None, SeqExtras::default());
    kv.extend_chain(&mut chain, &Tokens::new(text(1, 33).into()));
    let (missing, num_tokens) = kv.missing_files(&chain, 33);
    assert_eq!((keys.len(), missing.len(), num_tokens), (8, 2, 8));
}

/// After the second text, the device has the first two full blocks of the first one, and the last two of the window.
#[test]
fn every_group_needs_its_blocks() {
    for (arrived, expected) in [(vec![], 0), (vec![0], 20), (vec![1], 8), (vec![0, 1], 20)] {
        let mut kv = offloading(&[full(8), sliding(4, 8)], 100);
        run(&mut kv, 1, 21);
        let (_, moves) = run(&mut kv, 2, 21);
        assert_eq!([0, 1].map(|pool| moves.saves.iter().filter(|save| save.key.pool == pool).count()), [3, 3]);
        for save in moves.saves {
            match arrived.contains(&save.key.pool) {
                true => drop(kv.end_save(save.key)),
                false => kv.give_up_save(&save.key),
            }
        }
        assert_eq!(run(&mut kv, 1, 21).0, expected, "{arrived:?}");
        assert_eq!(kv.offload_stats().lost, 6 - 3 * arrived.len() as u64);
    }
}

#[test]
fn an_empty_cache_has_no_lower_tiers() {
    let mut kv = offloading(&[full(5)], 10);
    run(&mut kv, 1, 17);
    let (_, moves) = run(&mut kv, 2, 17);
    let [first, ..] = &moves.saves[..] else { panic!("nothing was saved") };
    kv.end_save(first.key);
    assert!(kv.reset_prefix_cache());
    assert!(kv.take_moves().overtakes, "the blocks of the other copies are still read");
    assert_eq!((kv.offload_stats().memory_contents, run(&mut kv, 1, 17).0), (0, 0));
    kv.check_integrity().unwrap();
}

/// A block may lose its content otherwise than by an eviction while it is copied. Whoever gets the block waits.
#[test]
fn copied_blocks_are_overtaken_without_evictions() {
    let mut kv = offloading(&[full(3)], 10);
    // The second one continued from the first block and computed the other one again, so two blocks have its content.
    let same = [0, 1].map(|_| Seq::run(&mut kv, &text(1, 8)));
    same.into_iter().for_each(|seq| seq.end(&mut kv));
    assert_eq!(kv.saves_ahead(&[1], false).len(), 1);
    let (_, moves) = run(&mut kv, 2, 4);
    assert!(moves.overtakes && moves.saves.is_empty());
}

#[test]
fn host_memory_has_room_for_contents() {
    let enable = |memory| {
        let sizes = OffloadConfig { memory, content_bytes: vec![10, BYTES], num_ahead: vec![1; 2] };
        cache_of(&[full(8), sliding(4, 8)], 4).enable_offload(sizes)
    };
    let refused = enable(4 * 250 - 1).unwrap_err().to_string();
    assert!(refused.contains("kv_offload_memory") && refused.contains("at least 1000 bytes"), "{refused}");
    enable(4 * 250).unwrap();
}

/// A running sequence replaces its rolling snapshot soon, so that is copied only once it has ended.
#[test]
fn rolling_snapshots_are_not_copied_ahead() {
    let states = StateConfig { num_slots: 3, slots_per_seq: 1, snapshot_interval: 4 };
    let mut kv = cache_with(&[full(16)], Some(states), 4);
    let sizes = OffloadConfig { memory: 1 << 20, content_bytes: vec![BYTES; 2], num_ahead: vec![9; 2] };
    kv.enable_offload(sizes).unwrap();
    let mut seq = Seq::run(&mut kv, &text(1, 6));
    (0..2).for_each(|token| drop(seq.append(&mut kv, token).unwrap()));
    let of_states = |kv: &mut KvCache| kv.saves_ahead(&[0, 9], false).len();
    assert_eq!((kv.stats().state_slots_cached, of_states(&mut kv)), (2, 1), "only the prompt's snapshot");
    seq.end(&mut kv);
    assert_eq!(of_states(&mut kv), 1);
}

/// The reason of a miss names the uppermost tier that has the next block.
#[test]
fn misses_name_the_tier_that_has_the_rest() {
    let mut kv = offloading(&[full(5)], 10);
    run(&mut kv, 1, 17);
    let (_, moves) = run(&mut kv, 2, 17);
    let keys: Vec<ContentKey> = moves.saves.iter().map(|save| save.key).collect();
    let mut chain = kv.new_chain(None, SeqExtras::default());
    kv.extend_chain(&mut chain, &Tokens::new(text(1, 17).into()));
    keys.iter().for_each(|key| kv.give_up_save(key));
    assert_eq!(kv.count_prefix_query(&chain, 17, 0, 0), PrefixMiss::Evicted);
    kv.note_files(&keys, &[]);
    assert_eq!(kv.count_prefix_query(&chain, 17, 0, 0), PrefixMiss::Files);
    keys.iter().for_each(|key| drop(kv.keep_in_memory(*key)));
    assert_eq!(kv.count_prefix_query(&chain, 17, 0, 0), PrefixMiss::HostMemory);
    let misses = kv.stats().prefix_cache_misses;
    assert_eq!((misses.evicted, misses.files, misses.host_memory), (17, 17, 17));
    let mut kv = offloading(&[full(5)], 10);
    kv.note_files(&keys, &[]);
    keys.iter().for_each(|key| kv.note_unreadable(key));
    assert_eq!(kv.count_prefix_query(&chain, 17, 0, 0), PrefixMiss::Unreadable);
}
