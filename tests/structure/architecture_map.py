"""The picture in docs/contributing/architecture.md: the engine's modules and their imports, drawn from the sources.

    PYTHONPATH=tests python tests/structure/architecture_map.py

writes docs/architecture.svg anew. A room is a module or a crate in src; those that all may use are left out. An arrow
means "imports". It is left out where others lead there already, and each room stands right below what imports it.
"""

from collections.abc import Mapping
from pathlib import Path

from rust_imports import file_imports
from rust_source import ROOT, product_files

PICTURE = ROOT / "docs" / "architecture.svg"

# Modules that all rooms use; their arrows would hide the others.
EVERYWHERE = {"config", "core", "lib"}

WIDTH, HEIGHT, GAP, FLOOR = 168, 34, 30, 84  # pixels of a room, between two of a floor, from floor to floor


def room_of(path: Path) -> str:
    """The module or crate of the top level."""
    return path.with_suffix("").parts[0]


def rooms(imports: Mapping[Path, set[Path]]) -> dict[str, set[str]]:
    """The other rooms that each room imports."""
    graph: dict[str, set[str]] = {}
    for path, used in imports.items():
        room = room_of(path)
        if room not in EVERYWHERE:
            graph.setdefault(room, set()).update({room_of(target) for target in used} - EVERYWHERE - {room})
    return graph


def without_detours(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph without arrows to rooms that are reached through another one."""

    def reach(room: str) -> set[str]:
        return graph[room].union(*(reach(other) for other in graph[room]))

    return {room: used - set().union(*(reach(other) for other in used)) for room, used in graph.items()}


def floors(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Counts how far below the top each room stands: right below all that import it."""

    def depth(room: str) -> int:
        return 1 + max((depth(other) for other, used in graph.items() if room in used), default=-1)

    return {room: depth(room) for room in graph}


def draw(graph: Mapping[str, set[str]]) -> str:
    depths = floors(graph)
    rows = [sorted(room for room in graph if depths[room] == row) for row in range(max(depths.values()) + 1)]
    width = max(len(row) for row in rows) * (WIDTH + GAP) + GAP
    left = [(width - len(row) * (WIDTH + GAP) + GAP) / 2 for row in rows]
    place = {
        room: (left[number] + index * (WIDTH + GAP), GAP + number * FLOOR)
        for number, row in enumerate(rows)
        for index, room in enumerate(row)
    }

    def gap(row: int, x: float) -> float:
        """The middle of the gap beside a room of that floor that is nearest to `x`."""
        gaps = (left[row] - GAP / 2 + index * (WIDTH + GAP) for index in range(len(rows[row]) + 1))
        return min(gaps, key=lambda middle: abs(middle - x))

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{GAP + len(rows) * FLOOR}" '
        'font-family="sans-serif" font-size="14">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#667"/></marker>',
    ]
    for room, used in sorted(without_detours(graph).items()):
        for other in sorted(used):
            x, y = place[room][0] + WIDTH / 2, place[room][1] + HEIGHT
            to_x = place[other][0] + WIDTH / 2
            curve = f"M{x:g},{y:g}"
            for row in range(depths[room] + 1, depths[other] + 1):
                # Past the rooms of the floors between, not behind them.
                next_x = to_x if row == depths[other] else gap(row, x + (to_x - x) / (depths[other] - row + 1))
                next_y = GAP + row * FLOOR
                bend = (y + next_y) / 2
                curve += f" C{x:g},{bend:g} {next_x:g},{bend:g} {next_x:g},{next_y:g}"
                x, y = next_x, next_y + HEIGHT
                curve += f" L{x:g},{y:g}" if row < depths[other] else ""
            lines.append(f'<path d="{curve}" fill="none" stroke="#667" marker-end="url(#head)"/>')
    for room, (x, y) in sorted(place.items()):
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#eef3fb" stroke="#445"/>'
            f'<text x="{x + WIDTH / 2:g}" y="{y + HEIGHT / 2 + 5:g}" text-anchor="middle">{room}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def picture() -> str:
    return draw(rooms(file_imports(dict(product_files()))))


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
