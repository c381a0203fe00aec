//! Position automata (Glushkov's construction): a state for each character class of an expression.

use super::chars::CharSet;
use super::parse::{Grammar, Node, NodeId};

/// An expression without recursion. A state is the position that was read last.
#[derive(Debug, Default, Clone)]
pub(super) struct Automaton {
    pub(super) classes: Vec<CharSet>,
    /// Positions that may come behind each.
    pub(super) next: Vec<Vec<u32>>,
    pub(super) first: Vec<u32>,
    pub(super) last: Vec<u32>,
    pub(super) nullable: bool,
}

impl Automaton {
    /// Only for a node of which `Sizes` knows the number of positions.
    pub(super) fn new(grammar: &Grammar, node: NodeId) -> Self {
        let mut made = Self::default();
        let ends = made.add(grammar, node);
        Self { first: ends.first, last: ends.last, nullable: ends.nullable, ..made }
    }

    fn add(&mut self, grammar: &Grammar, node: NodeId) -> Ends {
        match &grammar.nodes[node] {
            Node::Class(class) => {
                let position = self.classes.len() as u32;
                self.classes.push(class.clone());
                self.next.push(Vec::new());
                Ends { first: vec![position], last: vec![position], nullable: false }
            }
            Node::Rule(rule) => self.add(grammar, grammar.rules[*rule]),
            Node::Sequence(parts) => parts.iter().fold(Ends::empty(), |before, &part| {
                let after = self.add(grammar, part);
                self.join(before, after)
            }),
            Node::Choice(ways) => {
                let mut all = Ends { nullable: false, ..Ends::empty() };
                for &way in ways {
                    let one = self.add(grammar, way);
                    all.first.extend(one.first);
                    all.last.extend(one.last);
                    all.nullable |= one.nullable;
                }
                all
            }
            &Node::Repeat { of, min, max } => {
                let mut all = Ends::empty();
                for i in 0..max.unwrap_or(min.max(1)) {
                    let mut one = self.add(grammar, of);
                    one.nullable |= i >= min;
                    all = match max {
                        None if i + 1 >= min => {
                            self.link(&one.last, &one.first);
                            self.join(all, one)
                        }
                        _ => self.join(all, one),
                    };
                }
                all
            }
        }
    }

    fn join(&mut self, before: Ends, after: Ends) -> Ends {
        self.link(&before.last, &after.first);
        let Ends { mut first, mut last, nullable } = before;
        if nullable {
            first.extend(&after.first);
        }
        if !after.nullable {
            last.clear();
        }
        last.extend(after.last);
        Ends { first, last, nullable: nullable && after.nullable }
    }

    fn link(&mut self, from: &[u32], to: &[u32]) {
        for &position in from {
            let next = &mut self.next[position as usize];
            next.extend(to);
            next.sort_unstable();
            next.dedup();
        }
    }
}

/// The positions with which a part begins and ends.
struct Ends {
    first: Vec<u32>,
    last: Vec<u32>,
    nullable: bool,
}

impl Ends {
    fn empty() -> Self {
        Self { first: Vec::new(), last: Vec::new(), nullable: true }
    }
}
