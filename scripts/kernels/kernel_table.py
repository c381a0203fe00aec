"""The table of the kernels' bounds in docs/kernels.md: written from the model, read back, and compared with it."""

import re
from collections.abc import Iterable
from pathlib import Path

from kernel_model import DEVICES, HOT, ROOT, Bound

DOCUMENT = ROOT / "docs" / "kernels.md"
BEGIN = "<!-- Written by `scripts/kernels/kernel_report.py --write`. -->"
END = "<!-- Written until here. -->"
WRITE = "scripts/kernels/kernel_report.py --write"
# A bound that is worse by more than this share of itself is a fault.
TOLERANCE = 0.1

# A token of an 8B model in Q4_K_M (Llama 3: 32 layers, 4096 columns, 14336 of the feed-forward, 128256 tokens) reads so
# many MB of weights: half of the V and down matrices and the head are Q6_K.
MEGABYTES = {"q4_k": 3360, "q6_k": 1257}

# Tokens per second of one sequence that llama.cpp reaches with an 8B model in Q4_K_M by public reports.
PUBLISHED = {
    "MI300X": "[161](https://lzwjava.github.io/notes/2026-05-20-mi300x-llamacpp-gguf-throughput-benchmarks-en) "
    "(Qwen 3, ROCm; the page quotes llama.cpp's discussion 14640)",
    "RX 7900 XTX": "[106](https://github.com/ggml-org/llama.cpp/pull/26284) (Llama 3, ROCm)",
    "RX 9070 XT": "[88, 116](https://github.com/maeddesg/vulkanforge) (Qwen 3, ROCm and Vulkan)",
    "Strix Halo": "[37](https://github.com/lhl/strix-halo-testing/blob/main/llm-bench/README.md) (Llama 3, ROCm)",
}

# A cell names the unit and the share.
Cell = tuple[str, float]


def cell(bound: Bound) -> str:
    share = f"{bound.share:.0f}" if bound.share >= 30 else f"{bound.share:.1f}"
    in_flight = f"{bound.in_flight:.1f}" if bound.in_flight else "-"
    cycles = f"{bound.cycles_per_byte:.2f}" if bound.cycles_per_byte else "-"
    return f"{bound.unit} {share} %<br>{in_flight}, {cycles}, {bound.matrix:.0f} %"


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def written(text: str) -> tuple[str, str, str]:
    """Cuts the document into what stands before the tables, they themselves, and what stands behind them."""
    before, begin, rest = text.partition(BEGIN)
    tables, end, behind = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DOCUMENT} has no lines {BEGIN!r} and {END!r}, between which the bounds of kernels stand")
    return before, tables, behind


def read(text: str) -> dict[tuple[str, str], str]:
    """The cells of the document's table of bounds, by kernel and device."""
    lines = [line[2:-2].split(" | ") for line in written(text)[1].splitlines() if line.startswith("|")]
    names = lines[0][2:] if lines else []
    kernels = {f"`{hot.name}`" for hot in HOT}
    return {
        (line[0].strip("`"), name): entry
        for line in lines
        if line[0] in kernels
        for name, entry in zip(names, line[2:], strict=True)
        if entry
    }


def value(entry: str) -> Cell:
    """The unit and the share that a cell names."""
    found = re.match(r"([\w ]+?) ([\d.]+) %", entry)
    if not found:
        raise SystemExit(f"{DOCUMENT}: got the cell {entry!r}, expected one as of `{WRITE}`: a unit and a share in %")
    return found[1], float(found[2])


def tokens_per_second(shares: dict[str, float], gb_per_s: float, rows: int) -> float:
    """Steps of `rows` tokens, of which products with weights are all: by the share of the bandwidth of each type."""
    seconds = sum(MEGABYTES[ty] * 1e6 / (gb_per_s * 1e9 * shares[ty] / 100) for ty in MEGABYTES)
    return rows / seconds


def tables(cells: dict[tuple[str, str], str]) -> str:
    """The two tables: bounds, and what follows for a model."""
    names = [device.name for device in DEVICES]
    lines = [row(["kernel", "share of", *names]), row(["---"] * (2 + len(names)))]
    of = {"memory": "bandwidth", "matrix": "f16 peak", "vector": "f32 peak"}
    lines += [
        row([f"`{hot.name}`", of[hot.share_of], *(cells.get((hot.name, name), "") for name in names)]) for hot in HOT
    ]
    lines += ["", row(["tokens per second, 8B Q4_K_M", *names]), row(["---", *["---:"] * len(names)])]
    whole = {(f"whole_{ty}", name): "memory 100 %" for ty in MEGABYTES for name in names}
    lines += [
        row([label, *tokens_of(kernel, rows, cells | whole)])
        for label, kernel, rows in (
            ("the memory's bandwidth, 1 row", "whole_{}", 1),
            ("`gemv`, 1 row", "gemv_{}", 1),
            ("`matmul`, 8 rows", "matmul_{}_n8", 8),
            ("`matmul`, 64 rows", "matmul_{}_n64", 64),
        )
    ]
    lines.append(row(["llama.cpp, 1 row, by public reports", *(PUBLISHED.get(name, "") for name in names)]))
    return "\n".join(lines)


def tokens_of(kernel: str, rows: int, cells: dict[tuple[str, str], str]) -> list[str]:
    """The tokens per second of each device; `kernel` has a place for a tensor type. Empty where a bound is missing."""
    line = []
    for device in DEVICES:
        entries = {ty: cells.get((kernel.format(ty), device.name)) for ty in MEGABYTES}
        shares = {ty: value(entry)[1] for ty, entry in entries.items() if entry}
        known = len(shares) == len(MEGABYTES)
        line.append(f"{tokens_per_second(shares, device.gb_per_s, rows):,.0f}" if known else "")
    return line


def write(bounds: Iterable[Bound], document: Path = DOCUMENT) -> None:
    """Writes the tables into the document. Cells of targets that were not compiled stay."""
    text = document.read_text(encoding="utf-8")
    cells = read(text) | {(bound.kernel, bound.device): cell(bound) for bound in bounds}
    before, _, behind = written(text)
    document.write_text(f"{before}{BEGIN}\n\n{tables(cells)}\n\n{END}{behind}", encoding="utf-8")


def compare(bounds: Iterable[Bound], text: str) -> tuple[list[str], list[str]]:
    """Faults and remarks: where the model says another bound than the document."""
    cells, faults, remarks = read(text), [], []
    for bound in bounds:
        entry = cells.get((bound.kernel, bound.device))
        if entry is None:
            faults.append(f"docs/kernels.md has no bound of {bound.kernel} on {bound.device}: run {WRITE}")
            continue
        unit, share = value(entry)
        change = f"{bound.kernel} on {bound.device}: {unit} {share} % -> {bound.unit} {bound.share:.1f} %"
        if bound.share < (1 - TOLERANCE) * share:
            faults.append(
                f"{change}: the bound is worse than docs/kernels.md says by more than {TOLERANCE:.0%}; mend what the "
                f"change made of the inner loop (--all shows its figures), or accept it: run {WRITE}"
            )
        elif bound.share > (1 + TOLERANCE) * share or unit != bound.unit:
            remarks.append(f"{change}: docs/kernels.md is behind, run {WRITE}")
    return faults, remarks
