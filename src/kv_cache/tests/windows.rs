use super::*;

const NULL: u32 = crate::batch::NULL_BLOCK;

/// A token at p attends to p - window + 1 ..= p. Earlier blocks are freed as soon as the next token cannot read them.
#[test]
fn blocks_outside_the_window_go_back() {
    // Blocks have 4 tokens, and the window has 6.
    let mut kv = cache_of(&[sliding(6, 8)], 4);
    let mut seq = Seq::run(&mut kv, &text(1, 8));
    // The next token, 8, reads 3..=8.
    assert!(!seq.table().contains(&NULL));
    seq.append(&mut kv, 1).unwrap();
    // The next token, 9, reads 4..=9.
    assert_eq!((seq.table()[0], seq.table().len()), (NULL, 3));
    for n in 10..100 {
        seq.append(&mut kv, n).unwrap();
        let first_read = n as usize + 1 - 6;
        let nulls = seq.table().iter().take_while(|id| **id == NULL).count();
        assert_eq!(nulls, first_read / 4, "{n} tokens");
        assert!(!seq.table()[nulls..].contains(&NULL));
        assert_eq!(counts(&kv).2, seq.table().len() - nulls);
    }
    seq.end(&mut kv);
    assert_eq!(counts(&kv).2, 0);
}

/// Blocks that have left the window stay cached, after the blocks that were never filled.
#[test]
fn test_swa_free_split_keeps_cached_tail_ahead_of_scratch() {
    let mut kv = cache_of(&[sliding(4, 6)], 4);
    let seq = Seq::run(&mut kv, &text(1, 14));
    let order: Vec<u32> = kv.groups[0].pool.free.iter().map(|id| id.0).collect();
    // After 14 tokens the next one reads 11..=14, so blocks 0 and 1 were freed, full and findable.
    assert_eq!((seq.table(), order), (vec![NULL, NULL, 2, 3], vec![4, 5, 0, 1]));
    seq.end(&mut kv);
    let order: Vec<u32> = kv.groups[0].pool.free.iter().map(|id| id.0).collect();
    assert_eq!(order, [3, 4, 5, 0, 1, 2]);
}

/// A hit needs only the blocks that the next token reads.
#[test]
fn sliding_hit_needs_only_the_window() {
    let mut kv = cache_of(&[sliding(5, 6)], 4);
    Seq::run(&mut kv, &text(1, 16)).end(&mut kv);
    // The filler takes the two empty blocks and the oldest cached ones, so the start of the prompt is gone.
    let filler = Seq::start(&mut kv, &text(2, 16)).unwrap();
    let found = Seq::start(&mut kv, &text(1, 16)).map(|seq| (seq.num_hit, seq.table()));
    // After 12 tokens the next one reads 8..=12, so one cached block is enough.
    let (num_hit, table) = found.unwrap();
    assert_eq!((num_hit, table.len(), &table[..2]), (12, 4, &[NULL, NULL][..]));
    drop(filler);
}

/// With several groups, a hit must serve all of them.
#[test]
fn hit_is_common_to_all_groups() {
    let mut kv = cache_of(&[full(32), sliding(4, 32), sliding(9, 32)], 4);
    Seq::run(&mut kv, &text(1, 21)).end(&mut kv);
    let hit = |kv: &mut KvCache| {
        let seq = Seq::start(kv, &text(1, 21)).unwrap();
        let tables: Vec<usize> = (0..3).map(|g| seq.blocks.table(g).iter().filter(|id| id.is_null()).count()).collect();
        (seq.num_hit, tables)
    };
    assert_eq!(hit(&mut kv), (20, vec![0, 4, 3]));
    kv.tick(0);
    // The full group loses block 4 (the tail). The other 16 tokens need the windows before that position.
    let lost = {
        let mut chain = kv.new_chain(None, SeqExtras::default());
        kv.extend_chain(&mut chain, &Tokens::new(text(1, 21).into()));
        chain.hashes()[4]
    };
    let block = kv.groups[0].pool.index.get(&lost).unwrap();
    kv.groups[0].pool.index.remove(&lost, block);
    kv.groups[0].pool.blocks[block.index()].hash = None;
    kv.groups[0].pool.num_cached -= 1;
    assert_eq!(hit(&mut kv), (16, vec![0, 3, 2]));
}

/// A sequence alone never holds more than `can_ever_hold` counts.
#[test]
fn bound_of_a_lone_sequence_is_never_passed() {
    for window in [1, 2, 4, 5, 9, 30] {
        for max_step in [1, 3, 4, 7, 16] {
            let kv = cache_of(&[sliding(window, 64)], 4);
            let bound = kv.groups[0].max_blocks(60, max_step, 4);
            let mut kv = cache_of(&[sliding(window, bound)], 4);
            assert!(kv.can_ever_hold(60, max_step));
            let (mut blocks, chain) = (kv.new_sequence(), kv.new_chain(None, SeqExtras::default()));
            let mut computed = 0;
            while computed < 60 {
                let end = (computed + max_step).min(60);
                let demand = Demand { write: computed..end, reserve: end, ..Demand::default() };
                let plan = kv.plan(&blocks, PrefixHit::default(), &demand).unwrap();
                kv.commit(plan, &mut blocks, &mut Vec::new()).unwrap();
                kv.mark_computed(&mut blocks, &chain, &Tokens::new([].into()), end).unwrap();
                computed = end;
            }
        }
    }
}

#[test]
fn can_ever_hold_gates_what_is_too_long() {
    let kv = cache(4);
    assert!(kv.can_ever_hold(16, 8) && !kv.can_ever_hold(17, 8));
    assert!(!kv.can_ever_hold(usize::MAX, usize::MAX));
    // The group that holds least decides. A window that fits as a whole is no limit.
    let kv = cache_of(&[full(9), sliding(5, 4), full(6)], 4);
    assert!(kv.can_ever_hold(24, 8) && !kv.can_ever_hold(25, 8));
    assert!(kv.can_ever_hold(16, 9) && !kv.can_ever_hold(17, 9));
    assert_eq!((kv.longest_sequence(8), kv.longest_sequence(9)), (24, 16));
    let kv = cache_of(&[sliding(5, 4)], 4);
    assert!(kv.can_ever_hold(1_000_000, 8) && !kv.can_ever_hold(1_000_000, 9));
    assert!(!kv.can_ever_hold(usize::MAX, usize::MAX));
}
