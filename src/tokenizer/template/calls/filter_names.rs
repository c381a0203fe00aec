//! Names of the filters of `|`.

/// Filters of strings.
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

/// Filters of lists, and of other iterable values.
pub(super) const SEQUENCES: &[&str] = &[
    "batch", "count", "dictsort", "first", "groupby", "join", "last", "length", "list", "max", "min", "reverse",
    "slice", "sort", "sum", "unique",
];

/// Filters of all other values, or of any values.
const OTHERS: &[&str] = &[
    "abs",
    "attr",
    "d",
    "default",
    "filesizeformat",
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
