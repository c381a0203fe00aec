"""The rules of docs/architecture.md that no compiler checks: which crates may use which, where `unsafe` may stand, and
how long a file and how full a folder may be. Each rule is a function from a file to its violations, and is itself
tested on a bad sample."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from architecture_map import PICTURE, floors, picture, without_detours
from comment_blocks import clauses_without_sentence, has_comments
from rust_imports import circles, file_imports
from rust_source import (
    ROOT,
    code_only,
    is_test_file,
    product_files,
    rust_files,
    tracked_files,
    without_inline_tests,
)

# Manifests say what a crate may import, and the compiler checks it. These are the directions that must stay: all crates
# of the workspace that some may use, and those that others may not.
ONLY: dict[str, set[str]] = {
    "core": set(),
    "config": {"core"},
    "pixels": {"core"},
    "kv_cache": {"core"},
    "sampler": {"core"},
    "scheduler": {"core", "kv_cache"},
    "backend": {"config", "core", "gguf"},
    "conformance": {"backend", "config", "core", "gguf"},
    "cpu": {"backend", "config", "core", "gguf", "simd"},
    "gpu": {"backend", "config", "core", "cpu", "gguf"},
    "model": {"backend", "config", "core", "gguf", "pixels"},
    "devices": {"backend", "config", "core", "cpu", "gpu"},
}
NEVER = {"engine": {"conformance", "cpu", "gpu"}}

# The CPU's kernels and thread pool with the memory that they share, the GPU driver, the mapping of a model file, and
# memory that two processes share.
UNSAFE_PLACES = (
    r"cpu/(pool|linear|attention|kv|split|states|storage)\b|gpu/|gguf/map\b|isolation/ring\b|"
    r"python/interpreter\b"
)
MAX_LINES = 500
MAX_FILES = 15
# Folders with more source files, and the reason.
LARGE_FOLDERS = {
    "python/rocmforge": "modules that users import, with stubs beside the compiled one",
    "tests/server/page": "tests of the page, beside what they all import",
}
MAX_COLUMNS = 120
MAX_TEST_DATA = 60_000_000
MAX_TREE = 68 * 1024 * 1024


def pattern_outside(pattern: str, places: str = "$^") -> Callable[[Path, str], list[str]]:
    """A rule: what `pattern` finds is a violation unless the file's path starts with a match of `places`."""
    regex = re.compile(pattern)

    def check(path: Path, code: str) -> list[str]:
        return [] if re.match(places, path.as_posix()) else [m.group() for m in regex.finditer(code)]

    return check


# The crates beside the engine: a HIP runtime is a C interface over memory that it maps; a simulator needs neither.
CRATE_FOLDERS = ("crates", "sim")
CRATE_UNSAFE_PLACES = (
    r"simd/src/(lib|x86|linear/(formats|codebooks|lanes|kernels/\w+))\.rs$|"
    r"hipsim/src/(api|cpu|memory|execute|guard|guarded_pages|image|streams/product)\b|"
    r"amdsim/src/(operand|decode/(matrix|map))\b"
)
CRATE_FOREIGN_PLACES = r"hipsim/src/(api|cpu)\b"

# Each rule reads code without comments, literals and tests; with it, a file and a text that break it.
RULES: dict[str, tuple[Callable[[Path, str], list[str]], str, str]] = {
    "pyo3 and numpy only in the bindings": (
        pattern_outside(r"\b(pyo3|numpy)\b\s*::", r"python/|core/python\.rs$"),
        "engine/mod.rs",
        "use pyo3::prelude::*;",
    ),
    "foreign functions only in gpu/sys": (
        pattern_outside(r'\bextern\s+""', "gpu/sys"),
        "cpu/pool/mod.rs",
        code_only('extern "C" { fn sched_yield() -> i32; }'),
    ),
    "environment variables only in src/config": (
        pattern_outside(r"\benv\s*::\s*(vars?|vars?_os|set_var|remove_var)\b", "config/"),
        "cpu/pool/mod.rs",
        "let n = std::env::var(name);",
    ),
    "unsafe only where it is allowed": (
        pattern_outside(r"\bunsafe\b", UNSAFE_PLACES),
        "sampler/mod.rs",
        "let x = unsafe { *p };",
    ),
    "no wait for the whole device": (
        pattern_outside(r"\b\w*(DeviceSynchronize|CtxSynchronize)\b"),
        "gpu/sys/hip.rs",
        "fn hipDeviceSynchronize() -> Status;",
    ),
    # `GpuLoader::allocate` checks what it takes; the others take little, for which the loader's margin is.
    "device memory only in these places": (
        pattern_outside(
            r"\bDeviceBuffer\s*::\s*new\b",
            r"gpu/(loader|report/measure|vendor/trial|weights/upload|select/alter|select/masks|select/rows|select|gpu_backend/self_test|helper/driver_probe|capture/replay_check|step|tests/.*)\.rs$",
        ),
        "gpu/ops/linear.rs",
        "let buffer = DeviceBuffer::new(&device, bytes)?;",
    ),
    "nothing is printed": (
        pattern_outside(r"\b(e?print(ln)?|dbg)!"),
        "engine/core.rs",
        "eprintln!(x);",
    ),
    "no stub": (pattern_outside(r"\b(todo|unimplemented)!"), "model/mod.rs", "fn f() { todo!() }"),
    "no ignored test, no silenced dead code": (
        # Parts that are compiled alone do not use all of themselves.
        pattern_outside(r"#\[ignore\b|\ballow\([^)]*\bdead_code\b", "cpu/tests/parts.rs"),
        "model/mod.rs",
        "#[allow(dead_code)] fn f() {}",
    ),
}
WHOLE_FILE_RULES = {"no stub", "no ignored test, no silenced dead code", "environment variables only in src/config"}


@pytest.mark.parametrize("rule", RULES)
def test_rust_sources_keep_the_rule(rule: str) -> None:
    """S30, G12, G24: among the rules, nothing in the engine prints, nothing waits for a whole device, and device memory
    is taken in few places."""
    check = RULES[rule][0]
    if rule in WHOLE_FILE_RULES:
        files: Iterator[tuple[Path, str]] = ((path, code_only(text)) for path, text in rust_files())
    else:
        files = product_files()
    violations = {path.as_posix(): found for path, code in files if (found := check(path, code))}
    assert violations == {}


@pytest.mark.parametrize("rule", RULES)
def test_rule_finds_its_bad_sample(rule: str) -> None:
    check, path, bad = RULES[rule]
    assert check(Path(path), bad) != []


def test_no_circle_of_imports() -> None:
    found = circles(file_imports(dict(product_files())))
    assert sorted(map(sorted, found)) == [], "move what they share to a file of its own"


MANIFESTS = sorted(manifest for folder in CRATE_FOLDERS for manifest in (ROOT / folder).glob("*/Cargo.toml"))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)
def test_no_circle_of_imports_beside_the_engine(manifest: Path) -> None:
    files = {path: text for path, text in rust_files(manifest.parent / "src") if not is_test_file(path)}
    assert files != {}
    found = circles(file_imports({path: without_inline_tests(code_only(text)) for path, text in files.items()}))
    assert sorted(map(sorted, found)) == [], "move what they share to a file of its own"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.rs": "", "a/x.rs": "use super::y::Y;", "a/y.rs": "use crate::a::x::X;"}, [["a/x", "a/y"]]),
        # Through a third file, by groups, aliases and paths without an import.
        (
            {
                "a/mod.rs": "mod x; mod y; mod z;",
                "a/x.rs": "use crate::{Error, a::{self, y as why}}; fn f() { why::g::<u8>() }",
                "a/y.rs": "use super::super::a::{z::{self, Z as Zed}};",
                "a/z.rs": "impl T for Z { fn f() { crate::a::x::g() } }",
            },
            [["a/x", "a/y", "a/z"]],
        ),
        # An item that a room re-exports is its definer's, by whatever name.
        (
            {
                "a/mod.rs": "mod x; mod y; pub use x::X; pub(crate) use self::y::{Y as Why, g};",
                "a/x.rs": "use super::Why;",
                "a/y.rs": "use super::X;",
            },
            [["a/x", "a/y"]],
        ),
        ({"lib.rs": "pub use a::A;", "a.rs": "use crate::b::B;", "b.rs": "use crate::A;"}, [["a", "b"]]),
        # Through a crate's own root, and through crates by their names.
        ({"c/lib.rs": "use a::A;", "c/a.rs": "use crate::b::B;", "c/b.rs": "use crate::A;"}, [["c/a", "c/b"]]),
        (
            {
                "lib.rs": "pub use rocmforge_c as d;",
                "c/lib.rs": "",
                "c/a.rs": "use crate::a::A;",
                "b.rs": "use crate::d::a::A;",
            },
            [],
        ),
        (
            {"c/lib.rs": "use rocmforge_d as e;", "c/x.rs": "use crate::e::E;", "d/lib.rs": "use rocmforge_c::x::X;"},
            [["c", "d"]],
        ),
        # A file and a folder, through different files of it.
        (
            {
                "a/mod.rs": "",
                "a/x.rs": "use super::y::p::P;",
                "a/y/mod.rs": "",
                "a/y/p.rs": "",
                "a/y/q.rs": "use super::super::x::X;",
            },
            [["a/x", "a/y"]],
        ),
        ({"a.rs": "use crate::b::c::C;", "b.rs": "mod c;", "b/c.rs": "", "b/d.rs": "use crate::a::A;"}, [["a", "b"]]),
        # A parent and its child are one subject.
        ({"a.rs": "mod x; use x::X;", "a/x.rs": "use super::A;"}, []),
        ({"a/mod.rs": "mod x; use x::X;", "a/x.rs": "use super::{A, y};", "a/y.rs": "use super::A;"}, []),
        # Imports go one way only; visibility is no use; other crates and local names are none either.
        (
            {
                "a.rs": "",
                "a/x.rs": "use super::y::Y;",
                "a/y.rs": "pub(in crate::a::x) struct Y; fn f(x: u8) { x::<u8>() }",
            },
            [],
        ),
        ({"a/x.rs": "use super::y::Y;", "a/y.rs": "use x::X; use other::x;", "a/mod.rs": "pub use x::X;"}, []),
    ],
)
def test_circle_is_found(files: dict[str, str], expected: list[list[str]]) -> None:
    found = circles(file_imports({Path(name): code for name, code in files.items()}))
    assert sorted(map(sorted, found)) == expected


def crate_files() -> Iterator[tuple[Path, str]]:
    """(path from the crate's folder on, code without comments, literals and tests) of the crates beside the engine."""
    for folder in CRATE_FOLDERS:
        for path, text in rust_files(ROOT / folder):
            if path.parts[1] == "src":
                yield path, without_inline_tests(code_only(text))


@pytest.mark.parametrize(
    ("pattern", "places"),
    [
        (r"\bunsafe\b", CRATE_UNSAFE_PLACES),
        (r'\bextern\s+""', CRATE_FOREIGN_PLACES),
        (r"#\[ignore\b|\ballow\([^)]*\bdead_code\b|\b(todo|unimplemented|dbg)!", "$^"),
    ],
)
def test_crates_beside_the_engine_keep_the_rules(pattern: str, places: str) -> None:
    check = pattern_outside(pattern, places)
    assert {path.as_posix(): found for path, code in crate_files() if (found := check(path, code))} == {}
    assert {"hipsim", "simd"} <= {path.parts[0] for path, _ in crate_files()}


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("cpu/linear/part.rs", True),
        ("cpu/attention.rs", True),
        ("cpu/splitter.rs", False),
        ("cpu/pool/mod.rs", True),
        ("cpu/pool/wait.rs", True),
        ("gguf/map.rs", True),
        ("gguf/mod.rs", False),
        ("cpu/mod.rs", False),
        ("backend/args.rs", False),
        ("engine/core.rs", False),
    ],
)
def test_places_of_unsafe(path: str, allowed: bool) -> None:
    found = RULES["unsafe only where it is allowed"][0](Path(path), "unsafe { f() }")
    assert (found == []) is allowed


def crates_below(crate: str) -> set[str]:
    """The crates of the workspace that a crate's product uses."""
    manifest = tomllib.loads((ROOT / "src" / crate / "Cargo.toml").read_text(encoding="utf-8"))
    names = (name.removeprefix("rocmforge-") for name in manifest["dependencies"] if name.startswith("rocmforge"))
    return {name.replace("-", "_") for name in names}


def test_crates_know_only_what_they_may() -> None:
    assert {crate: crates_below(crate) for crate in ONLY} == ONLY
    assert {crate: crates_below(crate) & others for crate, others in NEVER.items()} == {crate: set() for crate in NEVER}


def test_code_only_removes_comments_and_literals() -> None:
    code = code_only("""
        let a = "use crate::model"; // crate::model
        let b = r#"crate::"model""#; /* crate::model
        */ let c = '"'; let d: &'static str = "\\"crate::model";
    """)
    assert "model" not in code
    assert "let c" in code
    assert "'static str" in code
    assert code.count("\n") == 4


def test_tests_are_told_from_the_product() -> None:
    names = ("kv_cache/tests.rs", "gguf/tests/bad.rs", "quant/prop.rs", "cpu/pool/loom_tests.rs", "testdata.rs")
    assert all(is_test_file(Path(name)) for name in names)
    assert not any(is_test_file(Path(name)) for name in ("kv_cache/pool.rs", "tokenizer/mod.rs", "engine/latest.rs"))
    assert without_inline_tests("fn f() {}\n#[cfg(test)]\nmod tests {\n println!();\n}") == "fn f() {}\n"
    assert "mod tests;" in without_inline_tests("#[cfg(test)]\nmod tests;\nfn f() {}")


def test_the_picture_is_of_these_sources() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run tests/structure/architecture_map.py"
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert without_detours(graph) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert floors(graph) == {"a": 0, "b": 1, "c": 2, "d": 0}


def test_every_module_is_reachable_from_python() -> None:
    """P8: a module that nothing imports, directly or through others, is a feature that does not exist."""
    uses: dict[str, set[str]] = {}
    for path, used in file_imports(dict(product_files())).items():
        modules = (other.with_suffix("").parts[0] for other in used)
        uses.setdefault(path.with_suffix("").parts[0], set()).update(modules)
    assert unreachable(uses) == set()


def unreachable(uses: dict[str, set[str]]) -> set[str]:
    """Modules to which no chain of imports leads from `python`."""
    reached, waiting = {"lib"}, ["python"]
    while waiting:
        module = waiting.pop()
        if module in uses and module not in reached:
            reached.add(module)
            waiting.extend(uses[module])
    return set(uses) - reached


def test_unreachable_module_is_found() -> None:
    uses = {"python": {"engine"}, "engine": {"model", "error"}, "model": set(), "cache": {"model"}, "lib": set()}
    assert unreachable(uses) == {"cache"}


def unused_functions(files: list[tuple[str, str]]) -> list[str]:
    """Public functions whose name stands nowhere in the product but at its definition."""
    words: dict[str, int] = {}
    defined: dict[str, str] = {}
    for path, code in files:
        for word in re.findall(r"\w+", code):
            words[word] = words.get(word, 0) + 1
        for name in re.findall(r"\bpub(?:\([a-z]+\))?\s+(?:const\s+|unsafe\s+)*fn\s+(\w+)", code):
            defined[name] = path
    return sorted(f"{path}: {name}" for name, path in defined.items() if words[name] == 1)


def test_every_public_function_is_used() -> None:
    """P8: rustc reports no unused item of a public module, so this does."""
    assert unused_functions([(path.as_posix(), code) for path, code in product_files()]) == []


def test_unused_function_is_found() -> None:
    files = [("a.rs", "pub fn used() {} pub const fn forgotten() {}"), ("b.rs", "fn f() { used() }")]
    assert unused_functions(files) == ["a.rs: forgotten"]


def is_source(path: Path) -> bool:
    """Files that people read and edit: under a source folder, and not test data."""
    parts = path.relative_to(ROOT).parts
    folders = (
        "src",
        "crates",
        "python",
        "sim",
        "tests",
        "fuzz",
        "benches",
        "kernels",
        "examples",
        "scripts",
        "integrations",
    )
    suffixes = (".rs", ".py", ".pyi", ".hip", ".h", ".hpp", ".sh", ".html", ".css", ".js")
    data = parts[:2] in {("tests", "data"), ("fuzz", "corpus")}
    return parts[0] in folders and not data and path.suffix in suffixes


def too_long(text: str) -> bool:
    return len(text.splitlines()) > MAX_LINES


def large_folders(files: Iterable[Path]) -> set[str]:
    """Folders with too many files of their own; those of folders in them do not count."""
    sizes = Counter(path.parent.as_posix() for path in files)
    return {folder for folder, size in sizes.items() if size > MAX_FILES}


def test_no_folder_is_too_large() -> None:
    found = large_folders(path.relative_to(ROOT) for path in tracked_files() if is_source(path))
    assert found == set(LARGE_FOLDERS), "put files of one subject in a folder of their own"
    files = [Path(f"src/gpu/{number}.rs") for number in range(MAX_FILES)]
    assert large_folders([*files, Path("src/gpu/ops/a.rs"), Path("src/lib.rs")]) == set()
    assert large_folders([*files, Path("src/gpu/more.rs")]) == {"src/gpu"}


def wide_comments(text: str) -> list[int]:
    """Numbers of lines that hold nothing but a comment and are too wide; rustfmt leaves those alone."""
    lines = enumerate(text.splitlines(), 1)
    return [n for n, line in lines if len(line) > MAX_COLUMNS and line.lstrip().startswith(("//", "# "))]


def test_no_comment_is_too_wide() -> None:
    found = {p.relative_to(ROOT).as_posix(): wide_comments(p.read_text()) for p in tracked_files() if is_source(p)}
    assert {name: numbers for name, numbers in found.items() if numbers} == {}
    assert wide_comments("//\n  // " + "x" * MAX_COLUMNS) == [2]
    assert wide_comments("f();  // " + "x" * MAX_COLUMNS) == []


def test_comments_are_sentences() -> None:
    """A comment that begins with "What", "Of", "As", "Those" or "The same" is a clause, not a sentence."""
    data = (ROOT / "tests" / "data", ROOT / "fuzz" / "corpus")
    files = [path for path in tracked_files() if has_comments(path) and not any(map(path.is_relative_to, data))]
    assert len(files) > 300
    found = {path.relative_to(ROOT).as_posix(): clauses_without_sentence(path, path.read_text()) for path in files}
    assert {name: clauses for name, clauses in found.items() if clauses} == {}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.rs", "/// Of the batch.\nx: u8,\n    //! What all share.\n// As above,\n// for rows.", [1, 3, 4]),
        (
            "a.rs",
            "/// Rows of a tile.\n/// Of each the first.\n///\n/// What is more.\nlet x = 1; // As it is.",
            [],
        ),
        ("a.rs", "// What is a tile? Rows of a batch.\n\n// What a tile is. Is it rows?", [3]),
        ("a.rs", '// Aspects, often, whatever, those.\nlet x = "Of it";', []),
        ("kernels/a.hip", "// The same\n// for rows.\n//! Those.\nint x;", [1, 3]),
        ("a.py", '"""What it is."""\n\n# Of it.\nclass C:\n    x: int\n    """As given."""\n', [1, 3, 6]),
        ("a.py", 'def f():\n    """Returns it.\n\n    What it is.\n    """\n    return """\nOf it."""\n', []),
        ("a.sh", "#!/bin/sh\n# What it does.\n#\n# More.\nx=1\n", [2]),
        ("Makefile", "x:  # Of it\n# The same.\n", [2]),
    ],
)
def test_clause_is_found(name: str, text: str, expected: list[int]) -> None:
    assert [number for number, _ in clauses_without_sentence(Path(name), text)] == expected


# Spelled in two pieces, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def test_no_file_is_too_long() -> None:
    assert [p.relative_to(ROOT).as_posix() for p in tracked_files() if is_source(p) and too_long(p.read_text())] == []
    assert too_long("line\n" * (MAX_LINES + 1))
    assert not too_long("line\n" * MAX_LINES)


def test_nothing_is_marked_unfinished() -> None:
    marked = [p for p in tracked_files() if is_source(p) and UNFINISHED.search(p.read_text())]
    assert [p.relative_to(ROOT).as_posix() for p in marked] == []
    assert UNFINISHED.search("// TO" + "DO: later")
    assert not UNFINISHED.search("IQ2_XXS")


def test_the_tree_is_small() -> None:
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in tracked_files()}
    assert sizes
    assert sum(size for name, size in sizes.items() if name.startswith("tests/data/")) <= MAX_TEST_DATA
    assert sum(sizes.values()) <= MAX_TREE
