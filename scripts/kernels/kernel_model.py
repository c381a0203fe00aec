"""A static model of the hot kernels on five AMD GPUs: what bounds each of them, by the machine code of its inner loop.

It is arithmetic, not measurement. A wave's way round the loop gives the cycles for which it occupies each unit of a
SIMD, and with an assumed latency of memory how long it takes alone; the waves that reside on a SIMD share the units and
overlap in time. What takes longest is the bound. The model does not see: hits in caches and their bandwidth, bank
conflicts, latencies between vector instructions, barriers, what is before and behind the loop, and launches.
"""

import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from machine_code import Code, Instruction, Loop, Rank, Trace, disassemble

ROOT = Path(__file__).resolve().parents[2]
OBJDUMP = ("llvm-objdump-22", "llvm-objdump-23", "llvm-objdump-24", "llvm-objdump")
SIMDS = 4  # of a multiprocessor, everywhere: a compute unit of CDNA, a workgroup processor of RDNA

# Assumed, in ns: what a load takes under load from memory, and from a cache. The Infinity Cache of an RX 7900 XTX takes
# 150 to 199 without load (chipsandcheese.com, 2023-06-14). By the first follow the bytes that must be in flight.
MEMORY_LATENCY, CACHE_LATENCY = 800, 200


@dataclass(frozen=True)
class Family:
    """How a family of GPUs issues instructions on its SIMDs."""

    lanes: int
    # Cycles between two instructions of a wave, and of a vector instruction on its SIMD: CDNA has 16 lanes for waves of
    # 64, RDNA 32 for waves of 32 (AMD's instruction set guides). A `v_dual_` is one instruction.
    cycles: int
    # Products of 32-bit integers have a quarter of the rate by LLVM's cost model (`getQuarterRateInstrCost`), and
    # transcendental functions are assumed to.
    slow_cycles: int
    # Operations of the matrix unit of a SIMD in a cycle, by operands. CDNA: AMD's data sheets, divided by clock and
    # compute units (f16: MI300X 1,307 TFLOPS, MI350X 2,307; int8 twice that). RDNA: half of a compute unit's in
    # https://gpuopen.com/learn/using_matrix_core_amd_rdna4 (f16: 512, 1,024; int8: 512, 2,048).
    matrix: dict[str, int]
    # Least cycles of a product on it: four passes of four for 16 x 16 (llvm-mca of gfx942 and gfx950).
    least_matrix: int
    # Whether products occupy the vector unit for as long: assumed of RDNA, where they are vector instructions.
    shares_vector: bool
    # Bytes that LDS gives a multiprocessor in a cycle: 128 for each compute unit (assumed of CDNA 4 too).
    lds_bytes: int
    # Assumed cycles until it answers.
    lds_latency: int
    # Operations of the vector unit of a SIMD in a cycle, in f32, two of a product with addition: AMD's data sheets
    # (MI300X 163 TFLOPS, RX 7900 XTX 61).
    vector: int


CDNA3 = Family(64, 4, 16, {"f16": 512, "i8": 1024}, 16, shares_vector=False, lds_bytes=128, lds_latency=100, vector=64)
CDNA4 = Family(64, 4, 16, {"f16": 1024, "i8": 2048}, 16, shares_vector=False, lds_bytes=128, lds_latency=100, vector=64)
RDNA3 = Family(32, 1, 4, {"f16": 256, "i8": 256}, 1, shares_vector=True, lds_bytes=256, lds_latency=40, vector=128)
RDNA4 = Family(32, 1, 4, {"f16": 512, "i8": 1024}, 1, shares_vector=True, lds_bytes=256, lds_latency=40, vector=128)


@dataclass(frozen=True)
class Device:
    """A GPU by AMD's data sheet: the highest clock and the memory's bandwidth that it names."""

    name: str
    target: str
    family: Family
    # The table of src/gpu/tuning/ that its launches are planned by.
    tuning: str
    multiprocessors: int
    mhz: int
    gb_per_s: int
    # Each multiprocessor has so many bytes.
    lds: int

    def bytes_per_cycle(self) -> float:
        """The share of the memory's bandwidth of one SIMD."""
        return self.gb_per_s * 1e3 / self.mhz / self.multiprocessors / SIMDS


# 304 and 256 compute units; 48, 32 and 20 workgroup processors of two. LPDDR5X-8000 on 256 bits.
DEVICES = (
    Device("MI300X", "gfx942", CDNA3, "cdna3", 304, 2100, 5300, 64 * 1024),
    Device("MI350X", "gfx950", CDNA4, "cdna4", 256, 2200, 8000, 160 * 1024),
    Device("RX 7900 XTX", "gfx1100", RDNA3, "rdna3", 48, 2500, 960, 128 * 1024),
    Device("RX 9070 XT", "gfx12-generic", RDNA4, "rdna4", 32, 2970, 640, 128 * 1024),
    Device("Strix Halo", "gfx1151", RDNA3, "apu", 20, 2900, 256, 128 * 1024),
)


@dataclass(frozen=True)
class Hot:
    """A kernel of the inner loop of serving."""

    name: str
    unit: str
    # Its share is that of the memory's bandwidth, or of the peak rate of the matrix or the vector unit.
    share_of: str = "memory"
    # The number in the tuning table that says how many of its blocks a multiprocessor is given: by name, and for
    # products by rows of a block. Without one, as many as fit.
    blocks: tuple[str, int] | None = None
    # Operations of a lane that the vector unit cannot be spared in a trip, where the share is of it.
    operations: int = 0
    # Share of the bytes that lanes load which are not another lane's too.
    distinct: float = 1.0


# Rows of a block of products, in the order of the tuning tables.
SHAPES = (8, 16, 32, 64)
# A tile has this share of the bytes that 32 lanes load of it: neighbouring lanes load a row's scale alike.
DISTINCT = {"q4_k": 2304 / 2496, "q6_k": 3360 / 3456, "q8_0": 1.0}
HOT = (
    *(Hot(f"gemv_{ty}", f"gemv.{ty}", blocks=("gemv", 0), distinct=DISTINCT[ty]) for ty in DISTINCT),
    *(
        Hot(f"matmul_{ty}_n{rows}", f"matmul.{ty}", blocks=("matmul", rows), distinct=DISTINCT[ty])
        for ty in ("q4_k", "q6_k")
        for rows in SHAPES
    ),
    Hot("attention_decode_f16_d128", "attention_decode", blocks=("attention", 0)),
    Hot("attention_decode_head_f16_d128", "attention_decode", blocks=("per_head", 0)),
    Hot("attention_prefill_f16_d128", "attention_prefill", "matrix"),
    # A lane has 32 elements of the state: two sums, a decay and an addition for each, three and a half products with
    # addition.
    Hot("delta_net_walk_d128", "states", "vector", operations=32 * 7),
)


# Kernels whose lanes exchange numbers by constant masks only.
WITHOUT_PERMUTES = ("gemv_", "attention_decode_")


class Resources(Protocol):
    """The figures that a code object has of a kernel."""

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def lds(self) -> int: ...
    @property
    def waves(self) -> int:
        """Waves of a SIMD that the vector registers allow."""


@dataclass(frozen=True)
class Bound:
    """The figures that the model gives of a kernel on a device."""

    kernel: str
    device: str
    # The unit that takes longest, and what share of `Hot.share_of` the kernel reaches by it, in percent.
    unit: str
    share: float
    # Bytes that are on their way from memory by what must be, if loads are all that a wave waits for.
    in_flight: float
    # Cycles of a SIMD's vector unit for a byte.
    cycles_per_byte: float
    # Share of the time for which the matrix unit is busy, in percent.
    matrix: float
    # Waves of a SIMD, bytes of a wave and trip, where the loop begins.
    waves: float
    bytes: float
    loop: int
    # Blocks that a multiprocessor has room for, and those that launches are planned for, if they are.
    room: int
    planned: int | None
    # Exchanges of lanes that go through LDS with an address for each lane.
    permutes: int

    def faults(self) -> list[str]:
        """Lists what is wrong with the kernel, or with the launches that are planned for it."""
        found = []
        if self.planned and self.planned > self.room:
            found.append(
                f"{self.kernel} on {self.device}: {self.planned} blocks of a multiprocessor are planned, "
                f"{self.room} fit"
            )
        if self.permutes and self.kernel.startswith(WITHOUT_PERMUTES):
            found.append(
                f"{self.kernel} on {self.device} has {self.permutes} ds_bpermute: shfl_xor<M> of kernels/gpu.h has none"
            )
        return found

    def line(self) -> str:
        """The figures for a terminal."""
        return (
            f"{self.kernel:32} {self.device:12} {self.unit:>9} {self.share:5.1f} %  in flight {self.in_flight:4.2f}  "
            f"cycles/B {self.cycles_per_byte:5.3f}  matrix {self.matrix:4.1f} %  waves {self.waves:4.1f}  "
            f"loop at {self.loop:#x}, {self.bytes:.0f} B"
        )


SLOW = re.compile(r"v_(exp|log|rcp|rcp_iflag|rsq|sqrt|sin|cos)_f|v_mul_(lo|hi)_[iu]32|v_mad_(co_)?[iu]64_[iu]32")
MATRIX = re.compile(r"v_(?:mfma|wmma)_[a-z]+\d+_(\d+)x(\d+)x(\d+)_?(b?f16|i8|iu8)(?:_1k)?$")
FREE = re.compile(r"s_(wait|nop|delay|clause|set|sched|barrier)")


def product(instruction: Instruction) -> tuple[int, str] | None:
    """The operations and the operands of a product on the matrix unit."""
    if not instruction.name.startswith(("v_mfma", "v_wmma", "v_smfmac", "v_swmmac")):
        return None
    found = MATRIX.match(instruction.name)
    if not found:
        raise SystemExit(
            f"scripts/kernels/kernel_model.py knows no rate of {instruction.name}: add it to MATRIX and Family"
        )
    return 2 * int(found[1]) * int(found[2]) * int(found[3]), "i8" if "i" in found[4] else "f16"


def lds_bytes(instruction: Instruction) -> int:
    """Bytes of a lane that an instruction moves between registers and LDS, or between lanes."""
    if not instruction.name.startswith("ds_"):
        return 0
    wide = re.search(r"_[biu](\d+)", instruction.name)
    pairs = 2 if re.search(r"(read|write)2|2addr", instruction.name) else 1
    return max(4, int(wide[1]) // 8 if wide else 4) * pairs


@dataclass
class Units:
    """Cycles for which instructions occupy the units of a SIMD; of LDS, which four SIMDs share."""

    vector: float = 0
    matrix: float = 0
    scalar: float = 0
    lds: float = 0
    operations: float = 0

    @classmethod
    def of(cls, trace: Iterable[Instruction], family: Family) -> "Units":
        units = cls()
        for instruction in trace:
            if made := product(instruction):
                cycles = matrix_cycles(made, family)
                units.matrix += cycles
                units.operations += made[0]
                units.vector += cycles if family.shares_vector else family.cycles
            elif instruction.name.startswith("v_"):
                units.vector += family.slow_cycles if SLOW.match(instruction.name) else family.cycles
            elif instruction.name.startswith("s_") and not FREE.match(instruction.name):
                units.scalar += family.cycles
            units.lds += lds_bytes(instruction) * family.lanes / family.lds_bytes
        return units


def matrix_cycles(made: tuple[int, str], family: Family) -> float:
    operations, operands = made
    return max(family.least_matrix, operations / family.matrix[operands])


def alone(trace: Trace, device: Device, is_memory: Callable[[Instruction], bool]) -> float:
    """Cycles of a trip of a wave that has a SIMD to itself, as it waits for its loads and for LDS: the mean of two
    trips after two others."""
    family, now, matrix_free, ends = device.family, 0.0, 0.0, []
    # Each entry is on its way, in order: the counter that it is counted by, and when it is there.
    pending: list[tuple[str, float]] = []
    for _ in range(4):
        for instruction in trace:
            name = instruction.name
            for counters, left in waits(instruction):
                mine = [entry for entry in pending if entry[0] in counters]
                done = mine[: len(mine) - left]
                now = max([now, *(there for _, there in done)])
                for entry in done:
                    pending.remove(entry)
            if made := product(instruction):
                now = max(now, matrix_free)
                matrix_free = now + matrix_cycles(made, family)
                now = matrix_free if family.shares_vector else now + family.cycles
                continue
            now += family.slow_cycles if SLOW.match(name) else family.cycles
            if instruction.loaded:
                latency = MEMORY_LATENCY if is_memory(instruction) else CACHE_LATENCY
                pending.append(("load", now + latency * device.mhz / 1e3))
            elif name.startswith(("global_store", "flat_store", "buffer_store")) and family.lanes == 64:
                pending.append(("load", now))  # counted like loads there
            elif name.startswith("ds_"):
                transfer = lds_bytes(instruction) * family.lanes / family.lds_bytes
                pending.append(("lds", now + family.lds_latency + transfer))
            elif name.startswith(("s_load", "s_buffer_load")):
                pending.append(("scalar", now + CACHE_LATENCY * device.mhz / 1e3))
        ends.append(now)
    return (ends[3] - ends[1]) / 2


def waits(instruction: Instruction) -> list[tuple[tuple[str, ...], int]]:
    """Returns the counters that an instruction waits for, with how many of what they count may be on their way."""
    name, operands = instruction.name, instruction.operands
    if name == "s_waitcnt":
        counters = {"vmcnt": ("load",), "lgkmcnt": ("lds", "scalar")}
        return [(counters[c], int(n)) for c, n in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", operands)]
    if not re.match(r"s_wait_\w*cnt", name):
        return []
    left, kinds = int(operands, 0), {"loadcnt": ("load",), "dscnt": ("lds",), "kmcnt": ("scalar",)}
    if name == "s_wait_loadcnt_dscnt":  # both in one number
        return [(("load",), left >> 8 & 63), (("lds",), left & 63)]
    return [(kinds[kind], left) for kind in kinds if name == f"s_wait_{kind}"]


def weight(instruction: Instruction, hot: Hot, streams: bool) -> int:
    """Counts the work that a kernel is there for: bytes that a lane loads by streaming loads, or where the kernel has
    none (`streams`) by loads of 16 bytes; where its share is of the vector unit, products with addition."""
    if hot.share_of == "vector":
        return 1 if re.match(r"v_(pk_|dual_)?fmac?_", instruction.name) else 0
    if streams:
        return instruction.loaded if instruction.streams else 0
    return instruction.loaded if instruction.loaded >= 16 else 0


def hot_loop(code: Code, weigh: Callable[[Instruction], int]) -> Loop | None:
    """The loop that weighs most itself, without loops within; of several, the innermost."""

    def own(loop: Loop) -> tuple[int, int]:
        within = {block for inner in code.inner(loop) for block in inner.blocks}
        return sum(weigh(i) for block in loop.blocks - within for i in code.blocks[block]), -len(loop.blocks)

    return max(code.loops, key=own, default=None)


def room_of(resources: Resources, device: Device) -> int:
    """Blocks that a multiprocessor has room for: by registers, and by LDS."""
    blocks = resources.waves * SIMDS // -(-resources.threads // device.family.lanes)
    return min(blocks, device.lds // resources.lds) if resources.lds else blocks


def waves_of(resources: Resources, device: Device, most_blocks: int | None) -> float:
    """Waves of a SIMD: those of the blocks that fit and that a multiprocessor is given."""
    room = room_of(resources, device)
    blocks = min(room, most_blocks) if most_blocks else room
    return blocks * -(-resources.threads // device.family.lanes) / SIMDS


def planned_blocks(hot: Hot, device: Device) -> int | None:
    """The blocks of a multiprocessor that launches are planned for.

    They are in the family's tuning table, or in what all of AMD's tables share.
    """
    if hot.blocks is None:
        return None
    what, rows = hot.blocks
    paths = [ROOT / "src/gpu/tuning" / f"{name}.rs" for name in (device.tuning, "amd")]
    pattern = {
        "gemv": r"gemv: Gemv \{[^}]*?\bblocks: (\d+)",
        "matmul": rf"shapes_of_waves\(\[(?:\d+, ){{{SHAPES.index(rows) if rows else 0}}}(\d+)",
        "attention": r"\battention: (\d+)",
        "per_head": r"per_head_blocks: (\d+)",
    }[what]
    found = next(filter(None, (re.search(pattern, path.read_text(encoding="utf-8")) for path in paths)), None)
    if not found:
        tables = " and ".join(map(str, paths))
        raise SystemExit(f"{tables} do not say how many blocks of {hot.name} a multiprocessor has ({pattern})")
    return int(found[1])


def bound_of(hot: Hot, device: Device, code: Trace, resources: Resources, most_blocks: int | None) -> Bound:
    """Finds what bounds a kernel on a device."""
    blocks, family = Code(code), device.family
    streams = any(instruction.streams for instruction in code)

    def weigh(instruction: Instruction) -> int:
        return weight(instruction, hot, streams)

    def is_memory(instruction: Instruction) -> bool:
        return hot.share_of == "memory" and weigh(instruction) > 0

    def rank(trace: Trace) -> Rank:
        made = [product(instruction) for instruction in trace]
        spent = sum(1 for instruction in trace if not FREE.match(instruction.name))
        return sum(map(weigh, trace)), sum(operations for operations, _ in filter(None, made)), -spent

    loop = hot_loop(blocks, weigh)
    if loop is None:
        raise SystemExit(
            f"{hot.name} for {device.target} has no loop: take it from HOT in scripts/kernels/kernel_model.py"
        )
    trace = blocks.way_round(loop, rank)
    units = Units.of(trace, family)
    waves = waves_of(resources, device, most_blocks)
    loaded = family.lanes * hot.distinct * sum(i.loaded for i in trace if is_memory(i) or hot.share_of != "memory")
    period = alone(trace, device, is_memory) / waves
    times = {
        "vector": units.vector,
        "matrix": units.matrix,
        "LDS": units.lds * SIMDS,
        "scalar": units.scalar,
        "in flight" if hot.share_of == "memory" else "latency": period,
    }
    memory = loaded / device.bytes_per_cycle()
    if hot.share_of == "memory":
        times = {"memory": memory, **times}
    unit = max(times, key=lambda name: times[name])
    needed = {
        "memory": memory,
        "matrix": units.operations / family.matrix["f16"],
        "vector": hot.operations * family.lanes / family.vector,
    }[hot.share_of]
    return Bound(
        kernel=hot.name,
        device=device.name,
        unit=unit,
        share=100 * needed / times[unit],
        in_flight=memory / period if hot.share_of == "memory" else 0,
        cycles_per_byte=units.vector / loaded if loaded else 0,
        matrix=100 * units.matrix / times[unit],
        waves=waves,
        bytes=loaded,
        loop=blocks.blocks[loop.head][0].address - code[0].address,
        room=room_of(resources, device),
        planned=most_blocks,
        permutes=sum(instruction.name == "ds_bpermute_b32" for instruction in code),
    )


def bounds(objects: dict[tuple[str, str], str], kernels: Iterable[Resources]) -> list[Bound]:
    """The bounds of all hot kernels on the devices whose code was compiled. `objects`: paths by target and unit."""
    if not any((device.target, hot.unit) in objects for device in DEVICES for hot in HOT):
        return []
    objdump = next(filter(None, map(shutil.which, OBJDUMP)), None)
    if objdump is None:
        raise SystemExit(f"none of {', '.join(OBJDUMP)} is in the path; on Debian: apt install llvm-22")
    resources = {(kernel.target, kernel.name): kernel for kernel in kernels}
    found = []
    for device in DEVICES:
        for unit in dict.fromkeys(hot.unit for hot in HOT):
            if (path := objects.get((device.target, unit))) is None:
                continue
            mine = [hot for hot in HOT if hot.unit == unit]
            code = disassemble(objdump, path, [hot.name for hot in mine])
            for hot in mine:
                if hot.name not in code:
                    raise SystemExit(f"{path} has no {hot.name}, which HOT in scripts/kernels/kernel_model.py names")
                kernel = resources[device.target, hot.name]
                found.append(bound_of(hot, device, code[hot.name], kernel, planned_blocks(hot, device)))
    return found
