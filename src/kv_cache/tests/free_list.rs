use proptest::prelude::*;

use crate::BlockId;
use crate::pool::free_list::FreeList;

fn ids(list: &FreeList) -> Vec<u32> {
    list.iter().map(|id| id.0).collect()
}

#[test]
fn test_free_kv_cache_block_queue_initialization() {
    let empty = FreeList::full(0);
    assert_eq!((empty.len(), ids(&empty)), (0, vec![]));
    let one = FreeList::full(1);
    assert_eq!((one.len(), ids(&one)), (1, vec![0]));
    assert_eq!(ids(&FreeList::full(5)), [0, 1, 2, 3, 4]);
}

#[test]
fn test_free_kv_cache_block_queue_operations() {
    let mut list = FreeList::full(5);
    assert_eq!(list.pop_front(), Some(BlockId(0)));
    list.remove(BlockId(2));
    assert_eq!(ids(&list), [1, 3, 4]);
    list.remove(BlockId(4));
    list.remove(BlockId(1));
    assert_eq!(ids(&list), [3]);
    assert!(!list.contains(BlockId(2)) && list.contains(BlockId(3)));
    list.remove(BlockId(3));
    assert_eq!((list.len(), list.pop_front()), (0, None));
    list.push_back(BlockId(2));
    list.push_back(BlockId(0));
    list.push_front(BlockId(4));
    assert_eq!(ids(&list), [4, 2, 0]);
}

/// Blocks at the head are taken last in, first out; blocks at the tail first in, first out.
#[test]
fn test_free_kv_cache_block_queue_append_and_prepend() {
    let mut list = FreeList::full(4);
    while list.pop_front().is_some() {}
    for id in [0, 1] {
        list.push_back(BlockId(id));
    }
    for id in [2, 3] {
        list.push_front(BlockId(id));
    }
    assert_eq!(std::iter::from_fn(|| list.pop_front()).map(|id| id.0).collect::<Vec<_>>(), [3, 2, 0, 1]);
}

proptest! {
    /// The list behaves like a plain vector.
    #[test]
    fn free_list_equals_a_vector(n in 1usize..12, ops in prop::collection::vec((0u8..4, 0u32..12), 0..80)) {
        let mut list = FreeList::full(n);
        let mut model: Vec<u32> = (0..n as u32).collect();
        for (op, id) in ops {
            let id = id % n as u32;
            match (op, model.iter().position(|other| *other == id)) {
                (0, _) => {
                    let first = (!model.is_empty()).then(|| model.remove(0));
                    prop_assert_eq!(list.pop_front().map(|id| id.0), first);
                }
                (1, Some(at)) => {
                    model.remove(at);
                    list.remove(BlockId(id));
                }
                (2, None) => {
                    model.push(id);
                    list.push_back(BlockId(id));
                }
                (3, None) => {
                    model.insert(0, id);
                    list.push_front(BlockId(id));
                }
                _ => {}
            }
            prop_assert_eq!(&ids(&list), &model);
            prop_assert_eq!(list.len(), model.len());
            for id in 0..n as u32 {
                prop_assert_eq!(list.contains(BlockId(id)), model.contains(&id));
            }
        }
    }
}
