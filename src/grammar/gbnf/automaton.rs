//! Position automata (Glushkov's construction), with one state per character class of an expression.

use super::chars::CharSet;
use super::parse::{Grammar, Node, NodeId};
use super::work::Work;

/// An automaton of an expression without recursion. A state is the last position that was read.
#[derive(Debug, Default, Clone)]
pub(super) struct Automaton {
    pub(super) classes: Vec<CharSet>,
    /// The positions that may follow each position.
    pub(super) next: Vec<Vec<u32>>,
    pub(super) first: Vec<u32>,
    pub(super) last: Vec<u32>,
}

impl Automaton {
    /// Builds the automaton of a node whose number of positions `Sizes` knows. `None` if it takes too much work.
    pub(super) fn new(grammar: &Grammar, node: NodeId, work: &mut Work) -> Option<Self> {
        let mut made = Self::default();
        let ends = made.add(grammar, node, work)?;
        Some(Self { first: ends.first, last: ends.last, ..made })
    }

    fn add(&mut self, grammar: &Grammar, node: NodeId, work: &mut Work) -> Option<Ends> {
        work.spend(1)?;
        Some(match &grammar.nodes[node] {
            Node::Class(class) => {
                let position = self.classes.len() as u32;
                self.classes.push(class.clone());
                self.next.push(Vec::new());
                Ends { first: vec![position], last: vec![position], nullable: false }
            }
            Node::Rule(rule) => self.add(grammar, grammar.rules[*rule], work)?,
            Node::Sequence(parts) => {
                let mut all = Ends::empty();
                for &part in parts {
                    let after = self.add(grammar, part, work)?;
                    all = self.join(all, after, work)?;
                }
                all
            }
            Node::Choice(ways) => {
                let mut all = Ends { nullable: false, ..Ends::empty() };
                for &way in ways {
                    let one = self.add(grammar, way, work)?;
                    all.first.extend(one.first);
                    all.last.extend(one.last);
                    all.nullable |= one.nullable;
                }
                all
            }
            &Node::Repeat { of, min, max } => {
                let mut all = Ends::empty();
                for i in 0..max.unwrap_or(min.max(1)) {
                    let mut one = self.add(grammar, of, work)?;
                    one.nullable |= i >= min;
                    all = match max {
                        None if i + 1 >= min => {
                            self.link(&one.last, &one.first, work)?;
                            self.join(all, one, work)?
                        }
                        _ => self.join(all, one, work)?,
                    };
                }
                all
            }
        })
    }

    fn join(&mut self, before: Ends, after: Ends, work: &mut Work) -> Option<Ends> {
        self.link(&before.last, &after.first, work)?;
        let Ends { mut first, mut last, nullable } = before;
        if nullable {
            first.extend(&after.first);
        }
        if !after.nullable {
            last.clear();
        }
        last.extend(after.last);
        Some(Ends { first, last, nullable: nullable && after.nullable })
    }

    fn link(&mut self, from: &[u32], to: &[u32], work: &mut Work) -> Option<()> {
        for &position in from {
            let next = &mut self.next[position as usize];
            work.spend(1 + to.len() + next.len() / 16)?;
            next.extend(to);
            next.sort_unstable();
            next.dedup();
        }
        Some(())
    }
}

/// The positions at which a part begins and ends.
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
