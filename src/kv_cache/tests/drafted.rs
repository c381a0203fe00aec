//! Blocks with content that a draft model has computed.

use super::*;

/// Finds a prefix of `tokens`. Returns its length, and the length that a draft model has computed.
fn found(kv: &KvCache, tokens: &[u32]) -> (usize, usize) {
    let mut chain = kv.new_chain(None, SeqExtras::default());
    kv.extend_chain(&mut chain, &Tokens::new(tokens.into()));
    let hit = kv.find_prefix(&chain, tokens.len());
    (hit.num_tokens, hit.num_drafted)
}

#[test]
fn a_hit_says_what_the_draft_model_has() {
    let mut kv = cache_of(&[full(16), sliding(6, 16)], 4);
    let tokens = text(1, 18);
    let mut seq = Seq::run(&mut kv, &tokens);
    assert_eq!(found(&kv, &tokens), (16, 0));
    // One token of the third block is missing.
    seq.catch_up(&mut kv, 11);
    assert_eq!((found(&kv, &tokens), seq.blocks.num_drafted()), ((16, 8), 2));
    assert_eq!(found(&kv, &tokens[..8]), (4, 4), "no more than is hit");
    let mut other = Seq::start(&mut kv, &tokens).unwrap();
    assert_eq!((other.num_drafted, other.blocks.num_drafted()), (8, 2));
    other.compute(&mut kv);
    // Other sequences find what one of the owners computes.
    other.catch_up(&mut kv, 18);
    assert_eq!(found(&kv, &tokens), (16, 16));
    seq.end(&mut kv);
    other.end(&mut kv);
    assert_eq!(found(&kv, &tokens), (16, 16), "also without an owner");
    assert!(kv.reset_prefix_cache());
    let again = Seq::run(&mut kv, &tokens);
    assert_eq!(found(&kv, &tokens), (16, 0), "forgotten with its content");
    again.end(&mut kv);
    // Other content takes the blocks.
    let mut kv = cache(4);
    let mut seq = Seq::run(&mut kv, &tokens[..9]);
    seq.catch_up(&mut kv, 9);
    seq.end(&mut kv);
    Seq::run(&mut kv, &text(2, 16)).end(&mut kv);
    assert_eq!(found(&kv, &text(2, 17)), (16, 0));
}

/// A block is marked once it is hashed, and never while it has no owner.
#[test]
fn blocks_without_a_name_are_not_marked() {
    let mut kv = cache(4);
    let mut seq = Seq::start(&mut kv, &text(1, 9)).unwrap();
    seq.catch_up(&mut kv, 8);
    assert_eq!(seq.blocks.num_drafted(), 0, "the model has not computed it yet");
    seq.compute(&mut kv);
    seq.catch_up(&mut kv, 8);
    assert_eq!(seq.blocks.num_drafted(), 2);
    let id = seq.blocks.table(0)[2];
    assert!(kv.groups[0].pool.set_drafted(id).is_err(), "it is not full");
    let full = seq.blocks.table(0)[0];
    seq.end(&mut kv);
    assert!(kv.groups[0].pool.set_drafted(full).is_err(), "nobody holds it");
    let fork = |kv: &mut KvCache| {
        let mut parent = Seq::run(kv, &text(1, 9));
        let child = parent.fork(kv);
        (parent, child)
    };
    let (parent, child) = fork(&mut kv);
    assert_eq!([&parent, &child].map(|seq| (seq.num_drafted, seq.blocks.num_drafted())), [(8, 2); 2]);
    parent.end(&mut kv);
    child.end(&mut kv);
}

/// A wrong mark of a block is a broken invariant.
#[test]
fn wrong_marks_are_found() {
    let mut kv = cache(8);
    let mut seq = Seq::run(&mut kv, &text(1, 9));
    seq.catch_up(&mut kv, 9);
    let table = seq.blocks.table(0).to_vec();
    kv.check_owners([&seq.blocks].into_iter()).unwrap();
    kv.groups[0].pool.blocks[table[1].index()].is_drafted = false;
    assert!(kv.check_owners([&seq.blocks].into_iter()).unwrap_err().to_string().contains("lacks what the draft model"));
    kv.groups[0].pool.blocks[table[2].index()].is_drafted = true;
    assert!(kv.check_integrity().unwrap_err().to_string().contains("has no content"));
}
