//! The syntax tree of a template. The parser limits its depth, so that walking it needs a bounded stack.

use std::sync::Arc;

pub(in crate::template) type Name = Arc<str>;
pub(in crate::template) type Body = Vec<Node>;

#[derive(Debug)]
pub(in crate::template) struct Node {
    pub line: u32,
    pub statement: Statement,
}

#[derive(Debug)]
pub(in crate::template) enum Statement {
    Text(Box<str>),
    Print(Expr),
    If {
        branches: Vec<(Expr, Body)>,
        otherwise: Body,
    },
    For(Arc<For>),
    Set {
        target: Target,
        value: Expr,
    },
    SetBlock {
        target: Target,
        filters: Vec<Post>,
        body: Body,
    },
    Macro(Arc<Macro>),
    CallBlock {
        call: Expr,
        caller: Arc<Macro>,
    },
    FilterBlock {
        filters: Vec<Post>,
        body: Body,
    },
    With {
        variables: Vec<(Target, Expr)>,
        body: Body,
    },
    /// A tag that only names its content: `{% generation %}`, `{% block %}`.
    Scope(Body),
    Break,
    Continue,
}

#[derive(Debug)]
pub(in crate::template) struct For {
    pub target: Target,
    pub iterable: Expr,
    pub condition: Option<Expr>,
    pub recursive: bool,
    pub body: Body,
    pub otherwise: Body,
}

#[derive(Debug)]
pub(in crate::template) struct Macro {
    pub name: Name,
    /// Defaults come last.
    pub parameters: Vec<(Name, Option<Expr>)>,
    pub body: Body,
    /// True if the body uses `varargs`, `kwargs` or `caller`, without which a call may not pass them.
    pub takes_varargs: bool,
    pub takes_kwargs: bool,
}

#[derive(Debug)]
pub(in crate::template) enum Target {
    Name(Name),
    /// `ns.attribute`, of a namespace.
    Attribute(Name, Name),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(in crate::template) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Box<str>),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// A primary expression with its postfixes, kept flat because real templates chain them.
    Postfix(Box<Expr>, Vec<Post>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    /// A chain of operators of one precedence, applied from the left: `a - b + c`.
    Arithmetic(Box<Expr>, Vec<(Operator, Expr)>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Conditional {
        test: Box<Expr>,
        then: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
}

#[derive(Debug)]
pub(in crate::template) enum Post {
    Attribute(Name),
    Item(Expr),
    Slice { start: Option<Expr>, stop: Option<Expr>, step: Option<Expr> },
    Call(Arguments),
    Filter(Name, Arguments),
    Test { name: Name, arguments: Arguments, negated: bool },
}

#[derive(Debug, Default)]
pub(in crate::template) struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(Name, Expr)>,
    /// `*values`
    pub unpacked: Option<Box<Expr>>,
    /// `**mapping`
    pub unpacked_named: Option<Box<Expr>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::template) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::template) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}
