//! Chooses the parts of a grammar that are read as lexemes.
//!
//! The library reads the longest possible lexeme and never returns to a shorter one. So a part may only be a lexeme if
//! no character after it could extend it. Nor may such a character extend another lexeme that may start at the same
//! place. Otherwise the longer lexeme is split, in the end into single characters, which are always correct but slow.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::automaton::Automaton;
use super::chars::CharSet;
use super::parse::{Grammar, Node, NodeId};
use super::work::Work;

/// The most positions of a lexeme.
const MAX_POSITIONS: u32 = 600;
/// The most pairs of positions that are compared for two lexemes; beyond that, one is split.
const MAX_PAIRS: usize = 200_000;

/// The parts of a grammar that are lexemes.
pub(super) struct Lexemes {
    /// The nodes are disjoint, and cover all characters of the grammar.
    pub(super) nodes: BTreeSet<NodeId>,
    /// For each node of the grammar, true if it may be empty.
    pub(super) nullable: Vec<bool>,
}

/// Chooses the lexemes.
///
/// # Errors
/// The grammar takes too much work.
pub(super) fn choose(grammar: &Grammar) -> Result<Lexemes, String> {
    let sizes = Sizes::of(grammar);
    let mut work = Work::begin();
    let follow = Following::of(grammar, &mut work)
        .ok_or("the grammar is too large: rules follow each other in too many ways")?;
    let nodes = largest(grammar, &sizes, &follow, &mut work);
    let single = || lexemes(grammar, &sizes, |node| !matches!(grammar.nodes[node], Node::Class(_)));
    Ok(Lexemes { nodes: nodes.unwrap_or_else(single), nullable: follow.nullable })
}

/// Returns the largest correct lexemes; `None` if finding them takes too much work.
fn largest(grammar: &Grammar, sizes: &Sizes, follow: &Following, work: &mut Work) -> Option<BTreeSet<NodeId>> {
    let mut automata: HashMap<NodeId, Automaton> = HashMap::new();
    let mut apart: HashSet<NodeId> = HashSet::new();
    let mut ends: HashMap<&CharSet, usize> = HashMap::new();
    // The result for two parts and the characters after the shorter one never changes.
    let mut wrong: HashMap<(NodeId, NodeId, usize), bool> = HashMap::new();
    loop {
        let lexemes = lexemes(grammar, sizes, |node| apart.contains(&node));
        for &node in &lexemes {
            let body = body(grammar, node);
            if let Entry::Vacant(place) = automata.entry(body) {
                place.insert(Automaton::new(grammar, body, work)?);
            }
        }
        let before = apart.len();
        let texts = lexemes.iter().filter(|&&node| !matches!(grammar.nodes[body(grammar, node)], Node::Class(_)));
        let texts: Vec<NodeId> = texts.copied().collect();
        for &shorter in &lexemes {
            let after = &follow.of[shorter];
            let next = ends.len();
            let end = *ends.entry(after).or_insert(next);
            for &longer in &texts {
                work.spend(1)?;
                if apart.contains(&longer) {
                    continue;
                }
                let (one, other) = (body(grammar, shorter), body(grammar, longer));
                let is_wrong = match wrong.get(&(one, other, end)) {
                    Some(&known) => known,
                    None => {
                        let found = may_go_on(&automata[&one], &automata[&other], after, work)?;
                        wrong.insert((one, other, end), found);
                        found
                    }
                };
                if is_wrong {
                    apart.insert(longer);
                }
            }
        }
        if apart.len() == before {
            return Some(lexemes);
        }
    }
}

/// Returns the node that a rule stands for, so that all uses of the rule share one automaton.
fn body(grammar: &Grammar, mut node: NodeId) -> NodeId {
    while let Node::Rule(rule) = grammar.nodes[node] {
        node = grammar.rules[rule];
    }
    node
}

/// True if a text of `shorter` is a prefix of a text of `longer` that continues with a character of `after`.
fn may_go_on(shorter: &Automaton, longer: &Automaton, after: &CharSet, work: &mut Work) -> Option<bool> {
    if after.is_empty() {
        return Some(false);
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
    work.spend(shorter.first.len() * longer.first.len())?;
    if !reach(&mut open, &shorter.first, &longer.first) {
        return Some(true);
    }
    while let Some((a, b)) = open.pop() {
        let (left, right) = (&shorter.next[a as usize], &longer.next[b as usize]);
        work.spend(1 + left.len() * right.len())?;
        let goes_on = || right.iter().any(|&next| longer.classes[next as usize].intersects(after));
        if (ends.contains(&a) && goes_on()) || !reach(&mut open, left, right) {
            return Some(true);
        }
    }
    Some(false)
}

/// Returns the largest parts that can be lexemes, other than those that are to be split.
fn lexemes(grammar: &Grammar, sizes: &Sizes, apart: impl Fn(NodeId) -> bool) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut seen = HashSet::new();
    let mut open = vec![grammar.rules[grammar.root]];
    while let Some(node) = open.pop() {
        if !seen.insert(node) {
            continue;
        }
        if !apart(node) && sizes.0[node].is_some_and(|size| (1..=MAX_POSITIONS).contains(&size)) {
            found.insert(node);
            continue;
        }
        open.extend(parts(grammar, node));
    }
    found
}

/// Returns the nodes of which a node consists.
fn parts(grammar: &Grammar, node: NodeId) -> Vec<NodeId> {
    match &grammar.nodes[node] {
        Node::Class(_) => Vec::new(),
        Node::Sequence(parts) | Node::Choice(parts) => parts.clone(),
        Node::Repeat { of, .. } => vec![*of],
        Node::Rule(rule) => vec![grammar.rules[*rule]],
    }
}

/// The number of positions of each node's automaton; `None` for a recursive node, or one that the root does not use.
struct Sizes(Vec<Option<u32>>);

impl Sizes {
    fn of(grammar: &Grammar) -> Self {
        let mut sizes = Self(vec![None; grammar.nodes.len()]);
        sizes.visit(grammar, grammar.rules[grammar.root], &mut vec![false; grammar.nodes.len()]);
        sizes
    }

    fn visit(&mut self, grammar: &Grammar, node: NodeId, seen: &mut [bool]) -> Option<u32> {
        // A node that is still being visited contains itself.
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
    fn of(grammar: &Grammar, work: &mut Work) -> Option<Self> {
        let count = grammar.nodes.len();
        let mut sets = Self {
            first: vec![CharSet::default(); count],
            nullable: vec![false; count],
            of: vec![CharSet::default(); count],
        };
        let mut order = Vec::with_capacity(count);
        visit_parts_first(grammar, grammar.rules[grammar.root], &mut vec![false; count], &mut order);
        while order.iter().fold(false, |any, &node| any | sets.grow_first(grammar, node)) {
            work.spend(count + ranges(&sets.first))?;
        }
        while order.iter().rev().fold(false, |any, &node| any | sets.grow_following(grammar, node)) {
            work.spend(count + ranges(&sets.first) + ranges(&sets.of))?;
        }
        Some(sets)
    }

    /// Extends the first characters of a node by those of its parts; `true` if any is new.
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

    /// Extends the characters that may follow the parts of a node; `true` if any is new.
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

fn ranges(sets: &[CharSet]) -> usize {
    sets.iter().map(CharSet::num_ranges).sum()
}

/// Lists the nodes that the root uses, each after its parts, except for recursion.
fn visit_parts_first(grammar: &Grammar, node: NodeId, seen: &mut [bool], order: &mut Vec<NodeId>) {
    if std::mem::replace(&mut seen[node], true) {
        return;
    }
    for part in parts(grammar, node) {
        visit_parts_first(grammar, part, seen, order);
    }
    order.push(node);
}
