"""Machine code of AMD GPUs as llvm-objdump prints it: its loops, and the instructions that a wave issues on one way
round a loop."""

import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

# The instructions of a wave in order, and a key by which ways through code are compared: the larger is taken.
Trace = list["Instruction"]
Rank = tuple[float, ...]

NUMBER = r"-?\d+|0x[0-9a-f]+"


@dataclass(frozen=True)
class Instruction:
    """One instruction. `target` is the address that a branch leads to."""

    address: int
    name: str
    operands: str
    target: int | None = None

    @property
    def ends_block(self) -> bool:
        return self.name.startswith(("s_cbranch", "s_branch", "s_endpgm", "s_setpc", "s_swappc"))

    @property
    def loaded(self) -> int:
        """Bytes that each lane loads from memory by it."""
        if not self.name.startswith(("global_load", "flat_load", "buffer_load")):
            return 0
        if wide := re.search(r"dwordx(\d)", self.name):
            return 4 * int(wide[1])
        if wide := re.search(r"_b(\d+)", self.name):
            return int(wide[1]) // 8
        if "dword" in self.name:
            return 4
        return 1 if re.search(r"byte|[iu]8", self.name) else 2

    @property
    def streams(self) -> bool:
        """Whether it loads what is read once: `nt` on GFX9, `slc` on GFX11, `TH_LOAD_NT` on GFX12."""
        return self.loaded > 0 and bool(re.search(r"\b(nt|slc|th:TH_LOAD_NT)\b", self.operands))


def disassemble(objdump: str, path: str, names: Sequence[str]) -> dict[str, Trace]:
    """The instructions of some kernels of a code object. A name that is not there is left out."""
    command = [objdump, "-d", f"--disassemble-symbols={','.join(names)}", path]
    return parse(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def parse(text: str) -> dict[str, Trace]:
    """The kernels in the output of `llvm-objdump -d`."""
    kernels: dict[str, Trace] = {}
    code, base = None, 0
    for line in text.splitlines():
        if head := re.match(r"([0-9a-f]+) <([\w.]+)>:", line):
            base, code = int(head[1], 16), kernels.setdefault(head[2], [])
        elif code is not None and (
            row := re.match(r"\s+(\S+)\s*(.*?)\s*// ([0-9A-F]+): [0-9A-F ]+(?:<[\w.]+?(?:\+0x([0-9a-f]+))?>)?$", line)
        ):
            name, operands, address, offset = row.groups()
            # A branch to the kernel's own beginning has no offset.
            target = base + int(offset or "0", 16) if line.endswith(">") else None
            code.append(Instruction(int(address, 16), name, operands, target))
    return kernels


@dataclass
class Loop:
    """A loop by its blocks. Control enters at block `head` alone."""

    head: int
    blocks: set[int] = field(default_factory=set)


class Code:
    """A kernel as blocks of instructions that are executed from their beginning to their end."""

    def __init__(self, instructions: Trace) -> None:
        starts = {instructions[0].address} | {i.target for i in instructions if i.target is not None}
        starts |= {b.address for a, b in pairwise(instructions) if a.ends_block}
        self.blocks: list[Trace] = []
        for instruction in instructions:
            if instruction.address in starts:
                self.blocks.append([])
            self.blocks[-1].append(instruction)
        place = {block[0].address: number for number, block in enumerate(self.blocks)}
        self.next: list[list[int]] = []
        for number, block in enumerate(self.blocks):
            last, ways = block[-1], []
            if not last.name.startswith(("s_branch", "s_endpgm", "s_setpc")) and number + 1 < len(self.blocks):
                ways.append(number + 1)
            if last.target is not None:
                ways.append(place[last.target])
            self.next.append(ways)

    @cached_property
    def loops(self) -> list[Loop]:
        """The natural loops: of every branch back to a block through which all ways to the branch lead."""
        before = defaultdict(list)
        for block, ways in enumerate(self.next):
            for way in ways:
                before[way].append(block)
        order = self._order()
        # Blocks through which every way to a block leads, as bits.
        through = dict.fromkeys(order, (1 << len(self.blocks)) - 1)
        through[0] = 1
        changed = True
        while changed:
            changed = False
            for block in order[1:]:
                bits = -1
                for earlier in before[block]:
                    bits &= through.get(earlier, -1)
                bits |= 1 << block
                if bits != through[block]:
                    through[block], changed = bits, True
        loops: dict[int, Loop] = {}
        for block in order:
            for head in self.next[block]:
                if through[block] >> head & 1:
                    loop, left = loops.setdefault(head, Loop(head, {head})), [block]
                    while left:
                        if (inner := left.pop()) not in loop.blocks and inner in through:
                            loop.blocks.add(inner)
                            left += before[inner]
        return list(loops.values())

    def _order(self) -> list[int]:
        """The blocks that can be reached, each before those that it alone leads to."""
        order, seen, stack = [], {0}, [(0, iter(self.next[0]))]
        while stack:
            block, ways = stack[-1]
            way = next((way for way in ways if way not in seen), None)
            if way is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(way)
                stack.append((way, iter(self.next[way])))
        return order[::-1]

    def inner(self, loop: Loop) -> list[Loop]:
        """The loops directly within a loop."""
        within = [other for other in self.loops if other.head != loop.head and other.blocks < loop.blocks]
        return [a for a in within if not any(a.blocks < b.blocks for b in within)]

    def instructions(self, loop: Loop) -> Trace:
        return [instruction for block in sorted(loop.blocks) for instruction in self.blocks[block]]

    def trips(self, loop: Loop) -> int | None:
        """How often a loop of one block runs, where its own instructions say it; else `None`."""
        if len(loop.blocks) != 1:
            return None
        block = self.blocks[loop.head]
        named = {i.name + " " + i.operands for i in block}
        for instruction in block:
            # A counter, compared after it was increased: `s_add_i32 s0, s0, 32`, `s_cmpk_lg_i32 s0, 0x80`.
            counted = re.match(r"(s\d+), (-?\w+)$", instruction.operands)
            if re.match(r"s_cmpk?_(lg|eq|lt)_[iu]32", instruction.name) and counted:
                register, end = counted[1], counted[2]
                added = rf"s_add(?:_co|k|k_co)?_i32 {register},.* ({NUMBER})$"
                step = next((m for n in named if (m := re.match(added, n))), None)
                start = self._value_before(loop, register)
                if step and start is not None and re.fullmatch(NUMBER, end):
                    return -((int(end, 0) - start) // -int(step[1], 0))
        # A flag that says "once more" and is cleared on the way: two trips.
        for name in named:
            flag = re.match(r"s_and(?:_not1|n2)?_b(32|64) vcc(?:_lo)?, exec(?:_lo)?, (\S+)$", name)
            if flag and f"s_mov_b{flag[1]} {flag[2]}, 0" in named:
                return 2
        return None

    def _value_before(self, loop: Loop, register: str) -> int | None:
        """The constant that the nearest instruction before a loop puts into a scalar register."""
        before = [i for block in self.blocks[: loop.head] for i in block]
        for instruction in reversed(before[-256:]):
            if value := re.match(rf"{register}, ({NUMBER})$", instruction.operands):
                return int(value[1], 0) if instruction.name.startswith("s_mov") else None
        return None

    def way_round(self, loop: Loop, rank: Callable[[Trace], Rank]) -> Trace:
        """The instructions of the way round a loop with the highest rank, of which that of a whole is the sum of its
        parts'. Loops within run as often as they say, or once. Lanes are active: what is only skipped where none is
        (`s_cbranch_execz`) is not skipped."""
        inner = {block: within for within in self.inner(loop) for block in within.blocks}
        best: dict[int, tuple[Rank, Trace] | None] = {}

        def joined(trace: Trace, rest: tuple[Rank, Trace]) -> tuple[Rank, Trace]:
            return tuple(map(sum, zip(rank(trace), rest[0], strict=True))), trace + rest[1]

        def follow(block: int) -> tuple[Rank, Trace] | None:
            """The best way from a block to the loop's end, or `None` where it leaves the loop."""
            if block in best:
                return best[block]
            best[block] = None  # while it is being looked for: no way goes in a circle
            if within := inner.get(block):
                trace = self.way_round(within, rank) * (self.trips(within) or 1)
                ways = sorted({way for b in within.blocks for way in self.next[b]} - within.blocks)
            else:
                trace, ways = self.blocks[block], self._taken(block, loop)
            found = []
            for way in ways:
                if way == loop.head:
                    found.append((rank(trace), trace))
                elif way in loop.blocks and (rest := follow(way)):
                    found.append(joined(trace, rest))
            best[block] = max(found, key=lambda one: one[0], default=None)
            return best[block]

        result = follow(loop.head)
        return result[1] if result else self.instructions(loop)

    def _taken(self, block: int, loop: Loop) -> list[int]:
        ways = [way for way in self.next[block] if way in loop.blocks]
        last = self.blocks[block][-1].name
        if len(ways) == 2 and last in ("s_cbranch_execz", "s_cbranch_execnz"):
            return ways[:1] if last == "s_cbranch_execz" else ways[1:]
        return ways
