//! Chooses the parts of a grammar that are read as lexemes.
//!
//! The library reads as long a lexeme as it can, and never goes back to a shorter one. So a part may be a lexeme only
//! if no character that may follow it lets it, or another lexeme that could stand in its place, go on. Otherwise the
//! longer one is taken apart, at last into single characters, which are always right but slow.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::automaton::Automaton;
use super::chars::CharSet;
use super::parse::{Grammar, Node, NodeId};

/// Positions of a lexeme at most.
const MAX_POSITIONS: u32 = 600;
/// Pairs of positions that are looked at for two lexemes at most: beyond that, one is taken apart.
const MAX_PAIRS: usize = 200_000;

/// The nodes that are lexemes. They are disjoint, and all characters of the grammar are in them.
pub(super) fn choose(grammar: &Grammar) -> BTreeSet<NodeId> {
    let sizes = Sizes::of(grammar);
    let follow = Following::of(grammar);
    let mut automata: HashMap<NodeId, Automaton> = HashMap::new();
    let mut apart: HashSet<NodeId> = HashSet::new();
    // Pairs that were found to be right stay so.
    let mut right: HashSet<(NodeId, NodeId)> = HashSet::new();
    loop {
        let lexemes = lexemes(grammar, &sizes, &apart);
        for &node in &lexemes {
            automata.entry(node).or_insert_with(|| Automaton::new(grammar, node));
        }
        let before = apart.len();
        for &shorter in &lexemes {
            for &longer in &lexemes {
                if apart.contains(&longer) || right.contains(&(shorter, longer)) {
                    continue;
                }
                let after = &follow.of[shorter];
                if matches!(grammar.nodes[longer], Node::Class(_))
                    || !may_go_on(&automata[&shorter], &automata[&longer], after)
                {
                    right.insert((shorter, longer));
                } else {
                    apart.insert(longer);
                }
            }
        }
        if apart.len() == before {
            return lexemes;
        }
    }
}

/// Whether a text of `shorter` is the beginning of one of `longer` that goes on with a character of `after`.
fn may_go_on(shorter: &Automaton, longer: &Automaton, after: &CharSet) -> bool {
    if after.is_empty() {
        return false;
    }
    let ends: HashSet<u32> = shorter.last.iter().copied().collect();
    let mut seen = HashSet::new();
    let mut open = Vec::new();
    let mut reach = |open: &mut Vec<(u32, u32)>, left: &[u32], right: &[u32]| {
        for &a in left {
            for &b in right {
                if shorter.classes[a as usize].intersects(&longer.classes[b as usize]) && seen.insert((a, b)) {
                    open.push((a, b));
                }
            }
        }
        seen.len() <= MAX_PAIRS
    };
    if !reach(&mut open, &shorter.first, &longer.first) {
        return true;
    }
    while let Some((a, b)) = open.pop() {
        let (left, right) = (&shorter.next[a as usize], &longer.next[b as usize]);
        let goes_on = || right.iter().any(|&next| longer.classes[next as usize].intersects(after));
        if (ends.contains(&a) && goes_on()) || !reach(&mut open, left, right) {
            return true;
        }
    }
    false
}

/// The largest parts that can be lexemes, were it not for those that are to be taken apart.
fn lexemes(grammar: &Grammar, sizes: &Sizes, apart: &HashSet<NodeId>) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut seen = HashSet::new();
    let mut open = vec![grammar.rules[grammar.root]];
    while let Some(node) = open.pop() {
        if !seen.insert(node) {
            continue;
        }
        if !apart.contains(&node) && sizes.0[node].is_some_and(|size| (1..=MAX_POSITIONS).contains(&size)) {
            found.insert(node);
            continue;
        }
        open.extend(parts(grammar, node));
    }
    found
}

/// The nodes that a node is made of.
fn parts(grammar: &Grammar, node: NodeId) -> Vec<NodeId> {
    match &grammar.nodes[node] {
        Node::Class(_) => Vec::new(),
        Node::Sequence(parts) | Node::Choice(parts) => parts.clone(),
        Node::Repeat { of, .. } => vec![*of],
        Node::Rule(rule) => vec![grammar.rules[*rule]],
    }
}

/// Positions of each node's automaton; `None` for a node with recursion in it, or that the root does not use.
struct Sizes(Vec<Option<u32>>);

impl Sizes {
    fn of(grammar: &Grammar) -> Self {
        let mut sizes = Self(vec![None; grammar.nodes.len()]);
        sizes.visit(grammar, grammar.rules[grammar.root], &mut vec![false; grammar.nodes.len()]);
        sizes
    }

    fn visit(&mut self, grammar: &Grammar, node: NodeId, seen: &mut [bool]) -> Option<u32> {
        // One that is still being visited is part of itself.
        if std::mem::replace(&mut seen[node], true) {
            return self.0[node];
        }
        let mut sum = Some(0u32);
        for part in parts(grammar, node) {
            let size = self.visit(grammar, part, seen);
            sum = sum.zip(size).map(|(sum, size)| sum.saturating_add(size));
        }
        self.0[node] = match &grammar.nodes[node] {
            Node::Class(_) => Some(1),
            Node::Repeat { min, max, .. } => sum.map(|size| size.saturating_mul(max.unwrap_or((*min).max(1)))),
            _ => sum,
        };
        self.0[node]
    }
}

/// The characters with which each node begins, and those that may follow it.
struct Following {
    first: Vec<CharSet>,
    nullable: Vec<bool>,
    of: Vec<CharSet>,
}

impl Following {
    fn of(grammar: &Grammar) -> Self {
        let count = grammar.nodes.len();
        let mut sets = Self {
            first: vec![CharSet::default(); count],
            nullable: vec![false; count],
            of: vec![CharSet::default(); count],
        };
        let mut order = Vec::with_capacity(count);
        visit_parts_first(grammar, grammar.rules[grammar.root], &mut vec![false; count], &mut order);
        while order.iter().fold(false, |any, &node| any | sets.grow_first(grammar, node)) {}
        while order.iter().rev().fold(false, |any, &node| any | sets.grow_following(grammar, node)) {}
        sets
    }

    /// Adds to the beginnings of a node what those of its parts allow; `true` if there is anything new.
    fn grow_first(&mut self, grammar: &Grammar, node: NodeId) -> bool {
        let mut first = CharSet::default();
        let nullable = match &grammar.nodes[node] {
            Node::Class(class) => {
                first.extend(class);
                false
            }
            Node::Rule(rule) => {
                first.extend(&self.first[grammar.rules[*rule]]);
                self.nullable[grammar.rules[*rule]]
            }
            Node::Choice(ways) => {
                ways.iter().for_each(|&way| _ = first.extend(&self.first[way]));
                ways.iter().any(|&way| self.nullable[way])
            }
            Node::Sequence(parts) => {
                let begins = parts.iter().position(|&part| !self.nullable[part]);
                parts[..begins.map_or(parts.len(), |i| i + 1)]
                    .iter()
                    .for_each(|&part| _ = first.extend(&self.first[part]));
                begins.is_none()
            }
            Node::Repeat { of, min, .. } => {
                first.extend(&self.first[*of]);
                *min == 0 || self.nullable[*of]
            }
        };
        let grown = nullable && !self.nullable[node];
        self.nullable[node] |= nullable;
        self.first[node].extend(&first) || grown
    }

    /// Adds to what may follow the parts of a node what the node says; `true` if there is anything new.
    fn grow_following(&mut self, grammar: &Grammar, node: NodeId) -> bool {
        let mut after = self.of[node].clone();
        match &grammar.nodes[node] {
            Node::Class(_) => false,
            Node::Rule(rule) => self.of[grammar.rules[*rule]].extend(&after),
            Node::Choice(ways) => ways.iter().fold(false, |any, &way| any | self.of[way].extend(&after)),
            Node::Sequence(parts) => parts.iter().rev().fold(false, |any, &part| {
                let grown = self.of[part].extend(&after);
                if !self.nullable[part] {
                    after = CharSet::default();
                }
                after.extend(&self.first[part]);
                any | grown
            }),
            Node::Repeat { of, max, .. } => {
                if *max != Some(1) {
                    after.extend(&self.first[*of]);
                }
                self.of[*of].extend(&after)
            }
        }
    }
}

/// Lists the nodes that the root uses, each behind its parts, but for recursion.
fn visit_parts_first(grammar: &Grammar, node: NodeId, seen: &mut [bool], order: &mut Vec<NodeId>) {
    if std::mem::replace(&mut seen[node], true) {
        return;
    }
    for part in parts(grammar, node) {
        visit_parts_first(grammar, part, seen, order);
    }
    order.push(node);
}
