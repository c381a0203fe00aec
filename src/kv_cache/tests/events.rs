//! A router that reads the log knows the content of the prefix cache.

use std::collections::HashMap;

use super::*;

/// A router that reads the events and so knows what can be hit.
#[derive(Debug, Default)]
pub(super) struct Router(pub(super) HashMap<(usize, BlockHash), StoredBlock>);

impl Router {
    pub(super) fn read(&mut self, kv: &mut KvCache) -> usize {
        let events = kv.take_events();
        let num_events = events.len();
        for event in events {
            match event {
                KvEvent::Stored { group, block } => {
                    let before = self.0.insert((group, block.hash), (*block).clone());
                    assert_eq!(before, None, "a content came that was there");
                }
                KvEvent::Removed { group, hash } => {
                    self.0.remove(&(group, hash)).expect("a content went that was not there");
                }
                KvEvent::Cleared => self.0.clear(),
            }
        }
        assert!(!kv.has_events());
        num_events
    }

    /// Returns all tokens up to the end of a block; `None` if a block before it was removed.
    pub(super) fn prefix(&self, group: usize, hash: BlockHash) -> Option<Vec<u32>> {
        let block = self.0.get(&(group, hash))?;
        let mut prefix = block.parent.map_or_else(|| Some(Vec::new()), |parent| self.prefix(group, parent))?;
        prefix.extend(&block.token_ids);
        Some(prefix)
    }

    fn prefixes(&self) -> Vec<Vec<u32>> {
        let mut all: Vec<_> = self.0.keys().filter_map(|(group, hash)| self.prefix(*group, *hash)).collect();
        all.sort();
        all
    }
}

#[test]
fn what_comes_and_goes_is_told_once() {
    let (mut kv, mut router) = (cache(4), Router::default());
    kv.record_events(100).unwrap();
    let (first, equal) = (Seq::run(&mut kv, &text(1, 9)), Seq::run(&mut kv, &text(1, 9)));
    assert_eq!(router.read(&mut kv), 3, "two blocks, after all that was before");
    assert_eq!(router.prefixes(), [text(1, 4), text(1, 8)]);
    first.end(&mut kv);
    equal.end(&mut kv);
    assert_eq!(router.read(&mut kv), 0, "what is cached can be hit as before");
    // Three of four blocks are needed, so the tail of the old prompt is evicted.
    let other = Seq::run(&mut kv, &text(2, 12));
    router.read(&mut kv);
    assert_eq!(router.prefixes(), [text(1, 4), text(2, 4), text(2, 8), text(2, 12)]);
    other.end(&mut kv);
    assert!(kv.reset_prefix_cache());
    assert_eq!((router.read(&mut kv), router.prefixes().len()), (1, 0));
}

#[test]
fn a_salt_is_told_and_keeps_contents_apart() {
    let (mut kv, mut router) = (cache(8), Router::default());
    kv.record_events(100).unwrap();
    let mut salted = Seq::start_salted(&mut kv, &text(1, 4), Some("of a client")).unwrap();
    salted.compute(&mut kv);
    let plain = Seq::run(&mut kv, &text(1, 4));
    router.read(&mut kv);
    let mut salts: Vec<_> = router.0.values().map(|block| block.salt.as_deref()).collect();
    salts.sort_unstable();
    assert_eq!(salts, [None, Some("of a client")]);
    salted.end(&mut kv);
    plain.end(&mut kv);
}

/// If there are more events than the log holds, the next reader gets the whole content, parents first.
#[test]
fn an_overflow_tells_everything_anew() {
    let (mut kv, mut router) = (cache(8), Router::default());
    kv.record_events(2).unwrap();
    assert_eq!(router.read(&mut kv), 1);
    let first = Seq::run(&mut kv, &text(1, 8));
    assert_eq!(router.read(&mut kv), 2);
    let second = Seq::run(&mut kv, &text(2, 12));
    let events = kv.take_events();
    assert_eq!(events.len(), 6, "{events:?}");
    assert_eq!(events[0], KvEvent::Cleared);
    let mut known = Vec::new();
    for event in &events[1..] {
        let KvEvent::Stored { block, .. } = event else { panic!("{event:?}") };
        assert!(block.parent.is_none_or(|parent| known.contains(&parent)));
        known.push(block.hash);
    }
    first.end(&mut kv);
    second.end(&mut kv);
}

#[test]
fn nothing_is_logged_unless_asked_and_only_from_the_beginning() {
    let mut kv = cache(4);
    Seq::run(&mut kv, &text(1, 8)).end(&mut kv);
    assert!(!kv.has_events() && kv.take_events().is_empty());
    let error = kv.record_events(10).unwrap_err().to_string();
    assert!(error.contains("reset_prefix_cache"), "{error}");
    assert!(kv.reset_prefix_cache());
    assert!(kv.record_events(0).is_err());
    kv.record_events(10).unwrap();
    assert_eq!(kv.take_events(), [KvEvent::Cleared]);
    kv.stop_events();
    Seq::run(&mut kv, &text(1, 8)).end(&mut kv);
    assert!(!kv.has_events());
    let mut without = KvCache::new(KvCacheConfig { enable_prefix_caching: false, ..cache(4).config }).unwrap();
    let error = without.record_events(10).unwrap_err().to_string();
    assert!(error.contains("enable_prefix_caching"), "{error}");
}
