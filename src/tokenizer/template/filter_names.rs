//! Names of the filters of `|`.

/// Those of strings.
pub(super) const STRINGS: &[&str] = &[
    "capitalize",
    "center",
    "e",
    "escape",
    "forceescape",
    "format",
    "indent",
    "lower",
    "replace",
    "title",
    "trim",
    "truncate",
    "upper",
    "urlencode",
    "wordcount",
];

/// Those of lists, and of what can be gone through like one.
pub(super) const SEQUENCES: &[&str] = &[
    "batch", "count", "dictsort", "first", "groupby", "join", "last", "length", "list", "max", "min", "reverse",
    "slice", "sort", "sum", "unique",
];

/// Those of all other values, and of values of any kind.
const OTHERS: &[&str] = &[
    "abs",
    "attr",
    "d",
    "default",
    "float",
    "int",
    "items",
    "map",
    "reject",
    "rejectattr",
    "round",
    "safe",
    "select",
    "selectattr",
    "string",
    "tojson",
];

pub(super) fn is_known(name: &str) -> bool {
    [STRINGS, SEQUENCES, OTHERS].iter().any(|names| names.contains(&name))
}
