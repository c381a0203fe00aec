//! Sets of characters, as ranges of code points.

use std::fmt::Write;

/// Sorted inclusive ranges that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct CharSet(Vec<(u32, u32)>);

const LAST: u32 = char::MAX as u32;

impl CharSet {
    pub(super) fn of(char: char) -> Self {
        Self(vec![(char as u32, char as u32)])
    }

    pub(super) fn any() -> Self {
        Self(vec![(0, LAST)])
    }

    /// Returns the characters of these ranges, which may be in any order.
    pub(super) fn from_ranges(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        Self(joined)
    }

    /// Returns all characters that are not in the set.
    pub(super) fn complement(&self) -> Self {
        let mut gaps = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0;
        for &(first, last) in &self.0 {
            if first > next {
                gaps.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            gaps.push((next, LAST));
        }
        Self(gaps)
    }

    /// Adds the characters of another set; `true` if any is new.
    pub(super) fn extend(&mut self, other: &Self) -> bool {
        if other.0.iter().all(|range| self.contains(range)) {
            return false;
        }
        *self = Self::from_ranges([self.0.as_slice(), &other.0].concat());
        true
    }

    fn contains(&self, &(first, last): &(u32, u32)) -> bool {
        let at = self.0.partition_point(|range| range.1 < first);
        self.0.get(at).is_some_and(|range| range.0 <= first && last <= range.1)
    }

    pub(super) fn intersects(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(left), Some(right)) = (a.peek(), b.peek()) {
            if left.0 <= right.1 && right.0 <= left.1 {
                return true;
            }
            if left.1 < right.1 {
                a.next()
            } else {
                b.next()
            };
        }
        false
    }

    pub(super) fn num_ranges(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the set as a class of a regular expression.
    pub(super) fn write_regex(&self, out: &mut String) {
        out.push('[');
        for &(first, last) in &self.0 {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{{{first:X}}}");
            if last > first {
                let _ = write!(out, "-\\x{{{last:X}}}");
            }
        }
        out.push(']');
    }
}
