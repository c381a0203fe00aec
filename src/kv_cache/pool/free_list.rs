//! The free blocks in allocation order: a doubly linked list over two index arrays. A cached block that is hit again
//! leaves the middle in O(1), and nothing is ever allocated.

use crate::BlockId;

/// Link value for "no neighbour on this side".
const END: u32 = u32::MAX;
/// Link value of a block that is not in the list.
const OUT: u32 = u32::MAX - 1;

#[derive(Debug)]
pub(crate) struct FreeList {
    next: Vec<u32>,
    prev: Vec<u32>,
    head: u32,
    tail: u32,
    len: usize,
}

impl FreeList {
    /// Returns a list of all `0..num_blocks`, in order. `num_blocks` is below `u32::MAX - 1`, as the configuration
    /// checks.
    pub(crate) fn full(num_blocks: usize) -> Self {
        let mut list = Self { next: vec![OUT; num_blocks], prev: vec![OUT; num_blocks], head: END, tail: END, len: 0 };
        for id in 0..num_blocks as u32 {
            list.push_back(BlockId(id));
        }
        list
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn contains(&self, id: BlockId) -> bool {
        self.next[id.index()] != OUT
    }

    /// Adds the block so that it is taken first.
    pub(crate) fn push_front(&mut self, id: BlockId) {
        debug_assert!(!self.contains(id), "{id:?} is in the free list already");
        self.next[id.index()] = self.head;
        self.prev[id.index()] = END;
        match self.head {
            END => self.tail = id.0,
            head => self.prev[head as usize] = id.0,
        }
        self.head = id.0;
        self.len += 1;
    }

    /// Adds the block so that it is taken last.
    pub(crate) fn push_back(&mut self, id: BlockId) {
        debug_assert!(!self.contains(id), "{id:?} is in the free list already");
        self.next[id.index()] = END;
        self.prev[id.index()] = self.tail;
        match self.tail {
            END => self.head = id.0,
            tail => self.next[tail as usize] = id.0,
        }
        self.tail = id.0;
        self.len += 1;
    }

    pub(crate) fn pop_front(&mut self) -> Option<BlockId> {
        if self.head == END {
            return None;
        }
        let id = BlockId(self.head);
        self.remove(id);
        Some(id)
    }

    /// Removes `id` from anywhere in the list.
    pub(crate) fn remove(&mut self, id: BlockId) {
        debug_assert!(self.contains(id), "{id:?} is not in the free list");
        let (next, prev) = (self.next[id.index()], self.prev[id.index()]);
        match prev {
            END => self.head = next,
            prev => self.next[prev as usize] = next,
        }
        match next {
            END => self.tail = prev,
            next => self.prev[next as usize] = prev,
        }
        self.next[id.index()] = OUT;
        self.prev[id.index()] = OUT;
        self.len -= 1;
    }

    /// Returns the blocks in allocation order. It ends after `num_blocks` steps even if the links were broken.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        let first = (self.head != END).then_some(BlockId(self.head));
        std::iter::successors(first, |id| {
            let next = self.next[id.index()];
            (next != END && next != OUT).then_some(BlockId(next))
        })
        .take(self.next.len())
    }
}
