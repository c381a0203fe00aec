mod index;
mod miss;

use super::*;

#[test]
fn test_prefill() {
    let mut kv = cache(16);
    // The prompt has 3 full blocks and 3 tokens.
    let prompt = text(1, 15);
    let first = Seq::run(&mut kv, &prompt);
    assert_eq!((first.num_hit, first.table()), (0, vec![0, 1, 2, 3]));

    // A second prompt begins with the same tokens. It shares their full blocks, and the rest is its own.
    let other: Vec<u32> = prompt[..12].iter().copied().chain(text(2, 4)).collect();
    let second = Seq::run(&mut kv, &other);
    assert_eq!((second.num_hit, second.table()), (12, vec![0, 1, 2, 4]));
    assert_eq!([0, 1, 2, 3, 4].map(|id| owners(&kv, id)), [2, 2, 2, 1, 1]);

    first.end(&mut kv);
    assert_eq!([0, 1, 2, 3, 4].map(|id| owners(&kv, id)), [1, 1, 1, 0, 1]);
    second.end(&mut kv);
    // The empty block comes first. Of the others, the tail of the prompt comes before its head.
    let order: Vec<u32> = kv.groups[0].pool.free.iter().map(|id| id.0).collect();
    assert_eq!(order, [3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 4, 2, 1, 0]);
}

#[test]
fn test_decode() {
    let mut kv = cache(16);
    let mut seq = Seq::run(&mut kv, &text(1, 15));
    seq.append(&mut kv, 50).unwrap();
    assert_eq!(seq.table().len(), 4);
    seq.append(&mut kv, 51).unwrap();
    assert_eq!(seq.table().len(), 5);
    // Generated tokens can be hit like any others once their block is full.
    let follow_up: Vec<u32> = seq.tokens.iter().copied().chain([60, 61]).collect();
    let next = Seq::start(&mut kv, &follow_up).unwrap();
    assert_eq!((next.num_hit, &next.table()[..4]), (16, &seq.table()[..4]));
}

/// A hit never includes the last token, whose logits are needed.
#[test]
fn hit_is_capped_at_one_token_less() {
    let mut kv = cache(16);
    let seq = Seq::run(&mut kv, &text(1, 8));
    for (n, hit) in [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4)] {
        assert_eq!(Seq::start(&mut kv, &text(1, 8)[..n]).unwrap().num_hit, hit, "{n} tokens");
        kv.tick(0);
    }
    let longer: Vec<u32> = text(1, 8).into_iter().chain([1]).collect();
    assert_eq!(Seq::start(&mut kv, &longer).unwrap().num_hit, 8);
    drop(seq);
}

/// Blocks are only found after the step that fills them was committed.
#[test]
fn uncommitted_blocks_are_not_found() {
    let mut kv = cache(16);
    let mut writing = Seq::start(&mut kv, &text(1, 8)).unwrap();
    let mut twin = Seq::start(&mut kv, &text(1, 8)).unwrap();
    assert_eq!(twin.num_hit, 0);
    writing.compute(&mut kv);
    assert_eq!(Seq::start(&mut kv, &text(1, 8)).unwrap().num_hit, 4);
    // Both sequences computed the same content. Both blocks stay, and either may go without the other being forgotten.
    twin.compute(&mut kv);
    writing.end(&mut kv);
    twin.end(&mut kv);
    assert_eq!(counts(&kv), (12, 4, 0));
    let filler = Seq::run(&mut kv, &text(2, 56));
    assert_eq!(counts(&kv), (0, 2, 14));
    assert_eq!(Seq::start(&mut kv, &text(1, 5)).unwrap().num_hit, 4);
    drop(filler);
}

#[test]
fn test_evict() {
    let mut kv = cache(6);
    let (a, b) = (Seq::run(&mut kv, &text(1, 12)), Seq::run(&mut kv, &text(2, 12)));
    let (a_blocks, b_blocks) = (a.table(), b.table());
    a.end(&mut kv);
    b.end(&mut kv);
    assert_eq!(counts(&kv), (0, 6, 0));
    // The first sequence to be freed is evicted first, from its tail.
    let mut filler = Seq::start(&mut kv, &text(3, 8)).unwrap();
    assert_eq!(filler.table(), [a_blocks[2], a_blocks[1]]);
    assert_eq!(kv.stats().evictions, 2);
    filler.compute(&mut kv);
    let again = Seq::start(&mut kv, &text(1, 12)).unwrap();
    assert_eq!((again.num_hit, again.table()), (4, vec![a_blocks[0], b_blocks[2], b_blocks[1]]));
    drop(filler);
}

/// K11: only blocks without an owner are evicted, least recently used first. If there are none, the allocation fails.
#[test]
fn test_lru_eviction_when_capacity_exceeded() {
    let mut kv = cache(4);
    for n in 1..=4 {
        Seq::run(&mut kv, &text(n, 4)).end(&mut kv);
    }
    // Prompt 1 is used again, so 2 is now the oldest.
    let live = Seq::start(&mut kv, &[text(1, 4), vec![9]].concat()).unwrap();
    assert_eq!((live.num_hit, kv.stats().evictions), (4, 1));
    let is_cached = |kv: &KvCache, n| {
        let mut chain = kv.new_chain(None, SeqExtras::default());
        kv.extend_chain(&mut chain, &Tokens::new(text(n, 4).into()));
        kv.find_prefix(&chain, 5).num_tokens == 4
    };
    assert_eq!([1, 2, 3, 4].map(|n| is_cached(&kv, n)), [true, false, true, true]);
    let more = Seq::start(&mut kv, &text(5, 8)).unwrap();
    assert_eq!([1, 2, 3, 4].map(|n| is_cached(&kv, n)), [true, false, false, false]);
    assert!(Seq::start(&mut kv, &text(6, 1)).is_none(), "nothing is left that has no owner");
    drop((live, more));
}

#[test]
fn test_maybe_evict_cached_block() {
    let mut kv = cache(3);
    // There are two blocks of equal content, and one of another.
    let mut twins = [Seq::start(&mut kv, &text(1, 4)).unwrap(), Seq::start(&mut kv, &text(1, 4)).unwrap()];
    twins.iter_mut().for_each(|seq| seq.compute(&mut kv));
    let other = Seq::run(&mut kv, &text(2, 4));
    let [first, second] = twins;
    let (first_block, second_block) = (first.blocks.table(0)[0], second.blocks.table(0)[0]);
    let name = first.chain.hashes()[0];
    first.end(&mut kv);
    second.end(&mut kv);
    let index = |kv: &KvCache| kv.groups[0].pool.index.get(&name);
    assert_eq!(kv.groups[0].pool.index.len(), 3);
    let taker = Seq::start(&mut kv, &text(3, 1)).unwrap();
    assert_eq!((taker.blocks.table(0)[0], index(&kv)), (first_block, Some(second_block)), "exactly one entry goes");
    assert_eq!(kv.groups[0].pool.index.len(), 2);
    let taker_2 = Seq::start(&mut kv, &text(4, 1)).unwrap();
    assert_eq!((taker_2.blocks.table(0)[0], index(&kv)), (second_block, None));
    drop((taker, taker_2, other));
}

#[test]
fn test_hash_block_correct_reuse() {
    let mut kv = cache(1);
    Seq::run(&mut kv, &text(1, 4)).end(&mut kv);
    assert!(kv.block_map(0)[0].hashed);
    let part = Seq::run(&mut kv, &text(2, 3));
    assert_eq!(part.table(), [0]);
    assert!(!kv.block_map(0)[0].hashed, "new owner, no old name");
    assert_eq!(kv.groups[0].pool.index.len(), 0);
    part.end(&mut kv);
    assert_eq!(counts(&kv), (1, 0, 0));
}

/// An allocation does not take the blocks of its own hit.
#[test]
fn test_computed_blocks_not_evicted() {
    let mut kv = cache(3);
    let seq = Seq::run(&mut kv, &text(1, 12));
    let blocks = seq.table();
    seq.end(&mut kv);
    // The prompt hits the oldest block of the free list and needs both others.
    let next: Vec<u32> = text(1, 4).into_iter().chain(text(2, 8)).collect();
    let seq = Seq::start(&mut kv, &next).unwrap();
    assert_eq!((seq.num_hit, seq.table()[0]), (4, blocks[0]));
}

/// A hit in the free list is not counted as free as well.
#[test]
fn test_evictable_cached_blocks_not_double_allocated() {
    let mut kv = cache(3);
    Seq::run(&mut kv, &text(1, 8)).end(&mut kv);
    assert_eq!(counts(&kv), (1, 2, 0));
    let prompt = |n| text(1, 8).into_iter().chain(text(2, n)).collect::<Vec<u32>>();
    assert!(Seq::start(&mut kv, &prompt(5)).is_none());
    let seq = Seq::start(&mut kv, &prompt(4)).unwrap();
    assert_eq!((seq.num_hit, seq.table().len(), counts(&kv)), (8, 3, (0, 0, 3)));
}

#[test]
fn test_basic_prefix_caching_disabled() {
    let mut kv = KvCache::new(KvCacheConfig { enable_prefix_caching: false, ..cache(4).config }).unwrap();
    for _ in 0..2 {
        let seq = Seq::run(&mut kv, &text(1, 12));
        assert_eq!(seq.num_hit, 0);
        seq.end(&mut kv);
        assert_eq!(counts(&kv), (4, 0, 0));
    }
}

#[test]
fn test_cache_key_salting() {
    let mut kv = cache(16);
    let prompt = text(1, 9);
    let run = |kv: &mut KvCache, salt| {
        let mut seq = Seq::start_salted(kv, &prompt, salt).unwrap();
        seq.compute(kv);
        let hit = seq.num_hit;
        seq.end(kv);
        hit
    };
    assert_eq!([Some("a"), Some("b"), None].map(|salt| run(&mut kv, salt)), [0, 0, 0]);
    assert_eq!([Some("a"), Some("b"), None].map(|salt| run(&mut kv, salt)), [8, 8, 8]);
}

#[test]
fn test_reset_prefix_cache() {
    let mut kv = cache(4);
    let seq = Seq::run(&mut kv, &text(1, 9));
    assert!(!kv.reset_prefix_cache(), "refused while blocks are owned");
    assert_eq!(kv.block_map(0).iter().filter(|block| block.hashed).count(), 2);
    drop(seq);
    assert!(kv.reset_prefix_cache(), "a dropped sequence owns nothing");
    kv.check_integrity().unwrap();
    assert_eq!(counts(&kv), (4, 0, 0));
    assert_eq!(Seq::start(&mut kv, &text(1, 9)).unwrap().num_hit, 0);
}
