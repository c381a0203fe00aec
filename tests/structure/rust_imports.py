"""Finds who imports whom among Rust sources: paths resolved through the crate's modules and their re-exports.

Code is what `rust_source.code_only` returns. A module is the tuple of its names below the crate's root, and a path is
the list of its segments. A folder with a `lib.rs` is a crate; its modules count as those of the folder, as if it were a
module of the crate around it, and `rocmforge_NAME` means the folder NAME.
"""

import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

Module = tuple[str, ...]

CRATE_PREFIX = "rocmforge_"

_PATH_HEAD = re.compile(r"(?<![\w:.])(?:crate|self|super|[a-z]\w*)\s*::")
_USE = re.compile(r"\buse\s+")
_VISIBILITY = re.compile(r"\bpub\s*\(\s*(?:crate|super|self|in\b[^)]*)\)")
_SEGMENT = re.compile(r"\s*(\w+|\*)\s*")
_ALIAS = re.compile(r"as\s+(\w+)\s*")


def module_of(path: Path) -> Module:
    """`a/b.rs` and `a/b/mod.rs`, relative to src, are the module `a::b`; `lib.rs` is the root."""
    parts = path.with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


def _tree(code: str, at: int) -> tuple[list[tuple[list[str], str]], int]:
    """The paths of the tree `a::{b, c::d as e}` that begins at `at`, each with the name that it is imported as, and
    where the tree ends."""
    segments: list[str] = []
    while True:
        group = re.compile(r"\s*\{").match(code, at)
        if group:
            paths, at = [], group.end()
            while not (end := re.compile(r"\s*\}|\s*$").match(code, at)):
                inner, after = _tree(code, at)
                paths += [(segments + path, name if path != ["self"] else segments[-1]) for path, name in inner]
                at = re.compile(r"\s*,?").match(code, max(after, at + (after == at))).end()
            return paths, end.end()
        segment = _SEGMENT.match(code, at)
        if not segment:
            return ([(segments, segments[-1])] if segments else []), at
        segments.append(segment.group(1))
        at = segment.end()
        if code.startswith("::", at):
            at += 2
            continue
        alias = _ALIAS.match(code, at)
        return [(segments, alias.group(1) if alias else segments[-1])], alias.end() if alias else at


def _paths(code: str) -> Iterator[list[str]]:
    """Every path of two or more segments, with groups written out."""
    code, at = _VISIBILITY.sub("pub", code), 0
    while head := _PATH_HEAD.search(code, at):
        paths, at = _tree(code, head.start())
        yield from (path for path, _ in paths)


def _imported(code: str) -> dict[str, list[str]]:
    """The names that `use` brings into a file, each with its path."""
    code = _VISIBILITY.sub("pub", code)
    trees = (_tree(code, use.end())[0] for use in _USE.finditer(code))
    return {name: path for tree in trees for path, name in tree if name not in ("*", "_")}


def _absolute(module: Module, path: list[str], crates: Set[str] = frozenset()) -> list[str] | None:
    """The path from the folder of all sources, if it begins with `crate`, `self`, `super` or a crate in it."""
    if path[0] == "crate":
        return [*(name for name in module[:1] if name in crates), *path[1:]]
    if (crate := path[0].removeprefix(CRATE_PREFIX)) != path[0] and crate in crates:
        return [crate, *path[1:]]
    if path[0] not in ("self", "super"):
        return None
    names, rest = list(module), list(path)
    while rest and rest[0] in ("self", "super"):
        if rest.pop(0) == "super" and names:
            names.pop()
    return names + rest


def file_imports(files: Mapping[Path, str]) -> dict[Path, set[Path]]:
    """The files, of those given, that each file uses something of. What a module re-exports counts as its definer's."""
    modules = {module_of(path): path for path in files}
    crates = {path.parts[0] for path in files if path.parts[1:] == ("lib.rs",)}
    names = {module: _imported(files[path]) for module, path in modules.items()}

    def find(module: Module, path: list[str], seen: frozenset[tuple[Module, str]]) -> tuple[Module, bool] | None:
        """The module that holds what a path in `module` means, and whether it is that module itself. `None`: it is of
        another crate, or of the file itself."""
        at, rest = module, path
        if (absolute := _absolute(module, path, crates)) is not None:
            at, rest = (), absolute
        elif (*module, path[0]) not in modules and path[0] not in names.get(module, {}):
            return None
        for segment in rest:
            if segment in ("self", "*"):
                break
            if (*at, segment) in modules:
                at = (*at, segment)
                continue
            if segment not in names.get(at, {}) or (at, segment) in seen:
                return at, False
            found = find(at, names[at][segment], seen | {(at, segment)})
            if not found or not found[1]:
                return found or (at, False)
            at = found[0]
        return at, True

    graph: dict[Path, set[Path]] = {path: set() for path in files}
    for module, path in modules.items():
        found = (find(module, segments, frozenset()) for segments in _paths(files[path]))
        graph[path] = {modules[at] for at, _ in filter(None, found) if at in modules} - {path}
    return graph


def circles(graph: Mapping[Path, set[Path]]) -> set[frozenset[str]]:
    """Members of a room that need each other, directly or through others of the set.

    A room is a folder, with the file that it has the name of, and its members are the files and folders in it. A file
    of a folder counts as the folder. What a member and the room's own file use of each other does not count: they are
    one subject.
    """
    rooms: dict[Module, dict[str, set[str]]] = {}
    for path, used in graph.items():
        source = module_of(path)
        for target in map(module_of, used):
            shared = next((n for n, (a, b) in enumerate(zip(source, target, strict=False)) if a != b), len(source))
            if shared < min(len(source), len(target)):
                members = rooms.setdefault(source[:shared], {})
                members.setdefault(source[shared], set()).add(target[shared])
    return {
        frozenset("/".join((*room, member)) for member in circle)
        for room, members in rooms.items()
        for circle in _circles_of(members)
    }


def _circles_of(edges: Mapping[str, set[str]]) -> set[frozenset[str]]:
    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = edges.get(waiting.pop(), set()) - found
            found |= new
            waiting.extend(new)
        return found

    reach = {member: reached(member) for member in edges}
    return {
        frozenset(other for other in found if member in reach.get(other, ()))
        for member, found in reach.items()
        if member in found
    }
