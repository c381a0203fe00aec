use crate::miss::MAX_REMEMBERED;
use crate::tests::*;

/// Starts a prompt, computes it and ends it. Returns the number of found tokens, and why no more were found.
fn ask(kv: &mut KvCache, prompt: &[u32], salt: Option<&str>) -> (usize, PrefixMiss) {
    let mut seq = Seq::start_salted(kv, prompt, salt).unwrap();
    let miss = kv.count_prefix_query(&seq.chain, prompt.len(), seq.num_hit, seq.num_held);
    let found = seq.num_hit;
    seq.compute(kv);
    seq.end(kv);
    (found, miss)
}

#[test]
fn each_miss_has_its_reason() {
    let mut kv = cache(8);
    let prompt = text(1, 17);
    assert_eq!(ask(&mut kv, &prompt[..3], None), (0, PrefixMiss::LastBlock));
    assert_eq!(ask(&mut kv, &prompt, None), (0, PrefixMiss::New));
    assert_eq!(ask(&mut kv, &prompt, None), (16, PrefixMiss::LastBlock));
    // The last block is whole, but its last token is always computed.
    assert_eq!(ask(&mut kv, &prompt[..16], None), (12, PrefixMiss::LastBlock));
    // The prompt differs after two blocks.
    assert_eq!(ask(&mut kv, &[&prompt[..10], &text(2, 6)[..]].concat(), None), (8, PrefixMiss::New));
    // Prefixes of another salt are not visible.
    assert_eq!(ask(&mut kv, &prompt, Some("other")), (0, PrefixMiss::New));
    // The tail of the last used prompt is evicted first, then all of it.
    drop(Seq::run(&mut kv, &text(3, 32)));
    kv.tick(0);
    assert_eq!(ask(&mut kv, &prompt, None), (0, PrefixMiss::Evicted));
    let missed = kv.stats().prefix_cache_misses;
    let expected = MissedTokens { last_block: 3 + 1 + 4, new: 17 + 8 + 17, evicted: 17, ..MissedTokens::default() };
    assert_eq!(missed, expected);
    let (queries, hits) = (kv.stats().prefix_cache_queries, kv.stats().prefix_cache_hits);
    assert_eq!(missed.last_block + missed.new + missed.evicted, queries - hits);
    assert!(kv.reset_prefix_cache());
    assert_eq!(ask(&mut kv, &prompt, None), (0, PrefixMiss::New));
}

#[test]
fn what_is_no_longer_remembered_is_said_to_be() {
    let mut kv = cache(4);
    ask(&mut kv, &text(1, 5), None);
    drop(Seq::run(&mut kv, &text(2, 16)));
    kv.tick(0);
    let others = (0..MAX_REMEMBERED as u64).map(|i| BlockHash([i.to_le_bytes(); 4].concat().try_into().unwrap()));
    others.for_each(|name| kv.evicted.insert(&name));
    // Before, both would have been evicted or new.
    assert_eq!(ask(&mut kv, &text(1, 5), None), (0, PrefixMiss::Forgotten));
    assert_eq!(ask(&mut kv, &text(3, 5), None), (0, PrefixMiss::Forgotten));
    assert!(kv.reset_prefix_cache());
    assert_eq!(ask(&mut kv, &text(3, 5), None), (0, PrefixMiss::New));
}

/// If a window's blocks are gone, those of another group do not help.
#[test]
fn a_window_that_is_gone_was_evicted() {
    let mut kv = cache_of(&[full(32), sliding(4, 4)], 4);
    ask(&mut kv, &text(1, 13), None);
    ask(&mut kv, &text(2, 13), None);
    assert_eq!(kv.find_prefix(&named(&kv, &text(1, 13)), 13).num_tokens, 0);
    assert_eq!(ask(&mut kv, &text(1, 13), None), (0, PrefixMiss::Evicted));
}

fn named(kv: &KvCache, tokens: &[u32]) -> HashChain {
    let mut chain = kv.new_chain(None, SeqExtras::default());
    kv.extend_chain(&mut chain, &Tokens::new(tokens.into()));
    chain
}
