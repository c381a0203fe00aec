"""The static model of the kernels on AMD GPUs: made-up machine code with figures computed by hand, and the table in the
documents."""

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rust_source import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "kernels"))
import kernel_model
import kernel_table
import machine_code
from kernel_model import CDNA3, DEVICES, HOT, RDNA3, RDNA4, Bound, Hot, Units
from machine_code import Code, Instruction, Trace

MI300X, _, RX_7900_XTX, RX_9070_XT, _ = DEVICES


def listing(source: str, name: str = "kernel") -> str:
    """Formats instructions as llvm-objdump prints them. `label:` names a place, `-> label` the target of a branch."""
    lines, labels, address = [], {}, 0x1000
    for line in filter(None, map(str.strip, source.splitlines())):
        if line.endswith(":"):
            labels[line[:-1]] = address
        else:
            lines.append((address, *line.partition(" -> ")))
            address += 4
    text = f"\nx.co:\tfile format elf64-amdgpu\n\nDisassembly of section .text:\n\n{0x1000:016x} <{name}>:\n"
    for place, instruction, arrow, label in lines:
        offset = labels[label] - 0x1000 if arrow else 0
        target = f" <{name}+{offset:#x}>" if offset else f" <{name}>" if arrow else ""
        text += f"\t{instruction:58} // {place:012X}: BF800000{target}\n"
    return text


def code(source: str) -> Code:
    return Code(machine_code.parse(listing(source))["kernel"])


def trace(*instructions: str) -> Trace:
    return machine_code.parse(listing("\n".join(instructions)))["kernel"]


def test_lines_are_read() -> None:
    """Branches have an address, others none, and a branch to the beginning has no offset in the listing."""
    read = machine_code.parse(
        listing(
            """start:
            s_mov_b32 s0, 0
            v_add_f32_e32 v1, v2, v3
            s_cbranch_scc1 5 -> end
            s_branch 65533 -> start
            end:
            s_endpgm"""
        )
    )["kernel"]
    assert read[1] == Instruction(0x1004, "v_add_f32_e32", "v1, v2, v3")
    assert [i.target for i in read] == [None, None, 0x1010, 0x1000, None]


@pytest.mark.parametrize(
    ("instruction", "loaded", "streams"),
    [
        ("global_load_dwordx4 v[0:3], v4, s[2:3] nt", 16, True),
        ("global_load_b128 v[0:3], v4, s[2:3] slc dlc", 16, True),
        ("global_load_b64 v[0:1], v4, s[2:3] th:TH_LOAD_NT", 8, True),
        ("global_load_ushort v0, v4, s[2:3] offset:2", 2, False),
        ("global_load_d16_b16 v0, v4, s[2:3]", 2, False),
        ("global_load_u8 v0, v4, s[2:3]", 1, False),
        ("global_load_dword v0, v4, s[2:3] sc1", 4, False),
        ("global_store_dwordx4 v4, v[0:3], s[2:3] nt", 0, False),
        ("ds_read_b128 v[0:3], v4", 0, False),
    ],
)
def test_loads_have_their_bytes(instruction: str, loaded: int, streams: bool) -> None:
    (read,) = trace(instruction)
    assert (read.loaded, read.streams) == (loaded, streams)


NESTED = """
    s_mov_b32 s9, 0
    outer:
    global_load_dwordx4 v[0:3], v4, s[2:3]
    s_mov_b32 s0, 0
    inner:
    v_mul_f32_e32 v1, v2, v3
    {step}
    {compare}
    s_cbranch_scc1 -5 -> inner
    s_add_i32 s9, s9, s10
    s_cmp_lg_u32 s9, s11
    s_cbranch_scc1 -9 -> outer
    s_endpgm
"""


@pytest.mark.parametrize(
    ("step", "compare", "trips"),
    [
        ("s_add_i32 s0, s0, 32", "s_cmpk_lg_i32 s0, 0x80", 4),
        ("s_add_co_i32 s0, s0, 1", "s_cmp_lg_u32 s0, 3", 3),
        ("s_addk_i32 s0, 0x10", "s_cmp_lt_u32 s0, 40", 3),
        ("s_add_i32 s0, s0, s12", "s_cmp_lg_u32 s0, 64", None),
        ("s_add_i32 s0, s0, 1", "s_cmp_lg_u32 s0, s12", None),
    ],
)
def test_loops_say_how_often_they_run(step: str, compare: str, trips: int | None) -> None:
    kernel = code(NESTED.format(step=step, compare=compare))
    outer, inner = sorted(kernel.loops, key=lambda loop: -len(loop.blocks))
    assert kernel.inner(outer) == [inner]
    assert kernel.inner(inner) == []
    assert (kernel.trips(inner), kernel.trips(outer)) == (trips, None)
    way = kernel.way_round(outer, lambda way: (0, -len(way)))
    assert sum(i.name == "v_mul_f32_e32" for i in way) == (trips or 1)
    assert way[0].name == "global_load_dwordx4"
    assert way[-1].name == "s_cbranch_scc1"


@pytest.mark.parametrize(
    ("test", "jump"),
    [("s_and_b64 vcc, exec, s[8:9]", "s_cbranch_vccnz"), ("s_and_not1_b32 vcc_lo, exec_lo, s8", "s_cbranch_vccz")],
)
def test_a_flag_that_is_cleared_makes_two_trips(test: str, jump: str) -> None:
    clear = "s_mov_b64 s[8:9], 0" if "b64" in test else "s_mov_b32 s8, 0"
    kernel = code(f"s_nop 0\nagain:\n{test}\n{clear}\n{jump} -3 -> again\ns_endpgm")
    assert kernel.trips(kernel.loops[0]) == 2


def test_the_way_round_does_the_work_and_nothing_else() -> None:
    """It does what is skipped where no lane is active, and not what the other side of a condition does."""
    kernel = code(
        """
        again:
        global_load_dwordx4 v[0:3], v4, s[2:3] nt
        s_cbranch_execz 2 -> idle
        v_dot4c_i32_i8_e32 v5, v0, v6
        idle:
        s_cmp_eq_u32 s0, s1
        s_cbranch_scc1 1 -> next
        s_barrier
        v_exp_f32_e32 v7, v7
        v_exp_f32_e32 v8, v8
        next:
        s_cbranch_scc0 3 -> wide
        global_load_dword v9, v4, s[2:3] nt
        s_branch 1 -> end
        wide:
        v_mov_b32_e32 v9, 0
        end:
        s_cbranch_vccnz -12 -> again
        s_endpgm"""
    )
    way = kernel.way_round(kernel.loops[0], lambda way: (sum(i.loaded for i in way), -len(way)))
    assert [i.name for i in way if i.name.startswith(("v_", "global", "s_barrier"))] == [
        "global_load_dwordx4",
        "v_dot4c_i32_i8_e32",
        "global_load_dword",
    ]


def test_units_are_occupied_as_long_as_the_family_takes() -> None:
    """CDNA: 4 cycles an instruction, 16 a quarter rate one and a product of 16 x 16 x 16, LDS 128 bytes a cycle."""
    mixed = trace(
        "v_fma_f32 v0, v1, v2, v3",
        "v_exp_f32_e32 v0, v1",
        "v_mul_lo_u32 v0, v1, v2",
        "v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]",
        "s_add_i32 s0, s0, 1",
        "s_waitcnt vmcnt(0)",
        "s_nop 1",
        "ds_read_b128 v[0:3], v4",
        "ds_read2_b64 v[0:3], v4 offset1:160",
        "ds_bpermute_b32 v0, v1, v2",
        "ds_write_b16 v0, v1",
    )
    assert Units.of(mixed, CDNA3) == Units(
        vector=4 + 16 + 16 + 4, matrix=16, scalar=4, lds=8 + 8 + 2 + 2, operations=8192
    )
    # RDNA: one cycle, four; 8192 operations at 256 or 512 a cycle, on the vector unit; LDS 256 bytes a cycle.
    rdna = trace(
        "v_dual_fmac_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5",
        "v_rcp_f32_e32 v0, v1",
        "v_mad_co_u64_u32 v[0:1], null, v2, v3, v[0:1]",
        "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]",
        "ds_load_2addr_b64 v[0:3], v4",
        "s_delay_alu instid0(VALU_DEP_1)",
    )
    assert Units.of(rdna, RDNA3) == Units(vector=1 + 4 + 4 + 32, matrix=32, lds=2, operations=8192)
    assert Units.of(rdna, RDNA4) == Units(vector=1 + 4 + 4 + 16, matrix=16, lds=2, operations=8192)


def test_a_product_without_a_known_rate_is_refused() -> None:
    with pytest.raises(SystemExit, match="v_mfma_f32_16x16x128_f8f6f4"):
        Units.of(trace("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3]"), CDNA3)


@pytest.mark.parametrize(
    ("instruction", "waits"),
    [
        ("s_waitcnt vmcnt(3) lgkmcnt(0)", [(("load",), 3), (("lds", "scalar"), 0)]),
        ("s_wait_loadcnt 0x2", [(("load",), 2)]),
        ("s_wait_loadcnt_dscnt 0x301", [(("load",), 3), (("lds",), 1)]),
        ("s_wait_kmcnt 0x0", [(("scalar",), 0)]),
        ("s_wait_storecnt 0x0", []),
        ("s_wait_alu depctr_va_vcc(0)", []),
    ],
)
def test_waits_are_read(instruction: str, waits: list[object]) -> None:
    assert kernel_model.waits(trace(instruction)[0]) == waits


@pytest.mark.parametrize(
    ("left", "cycles"),
    [
        # 800 ns at 2.1 GHz are 1,680 cycles; a load, a wait, a sum and a branch take 4 each.
        (0, 1680 + 16),
        # Half of that, where the load of the trip before may be awaited.
        (1, (1680 + 16) / 2),
    ],
)
def test_a_wave_alone_waits_for_its_loads(left: int, cycles: float) -> None:
    way = trace(
        "global_load_dwordx4 v[0:3], v4, s[2:3] nt",
        f"s_waitcnt vmcnt({left})",
        "v_add_f32_e32 v0, v0, v1",
        "s_cbranch_scc1 -4",
    )
    assert kernel_model.alone(way, MI300X, lambda i: i.streams) == cycles


def test_loads_of_a_cache_and_lds_take_less() -> None:
    """200 ns at 2.97 GHz; LDS 40 cycles and two for 512 bytes. Each instruction takes a cycle on RDNA."""
    load = trace("global_load_b128 v[0:3], v4, s[2:3]", "s_wait_loadcnt 0x0")
    assert kernel_model.alone(load, RX_9070_XT, lambda i: i.streams) == pytest.approx(200 * 2.97 + 2)
    shared = trace("ds_load_b128 v[0:3], v4", "s_wait_dscnt 0x0")
    assert kernel_model.alone(shared, RX_9070_XT, lambda i: i.streams) == 40 + 2 + 2


@dataclass
class Compiled:
    """The resources of a made-up kernel."""

    name: str = "kernel"
    target: str = "gfx942"
    threads: int = 256
    lds: int = 0
    waves: int = 8


@pytest.mark.parametrize(
    ("compiled", "blocks", "waves"),
    [
        # 256 threads are four waves of 64, one on each SIMD.
        (Compiled(), None, 8),
        (Compiled(), 2, 2),
        (Compiled(lds=24 * 1024), None, 2),
        (Compiled(threads=512, waves=3), None, 2),
        (Compiled(threads=128), 3, 1.5),
    ],
)
def test_waves_follow_from_registers_lds_and_blocks(compiled: Compiled, blocks: int | None, waves: float) -> None:
    assert kernel_model.waves_of(compiled, MI300X, blocks) == waves


STREAM = """
    again:
    global_load_dwordx4 v[0:3], v4, s[2:3] nt
    s_waitcnt vmcnt(0)
    {work}
    s_cbranch_scc1 -4 -> again
    s_endpgm
"""


@pytest.mark.parametrize(
    ("sums", "blocks", "unit"),
    [
        # 1,024 bytes at 2.0755 bytes a cycle and SIMD are 493.4 cycles.
        (1, 8, "memory"),
        (1, 1, "in flight"),
        (200, 8, "vector"),
    ],
)
def test_the_longest_is_the_bound(sums: int, blocks: int, unit: str) -> None:
    source = STREAM.format(work="v_add_f32_e32 v0, v0, v1\n" * sums)
    found = kernel_model.bound_of(Hot("kernel", "unit"), MI300X, code_of(source), Compiled(), blocks)
    memory = 1024 / (5300e3 / 2100 / 304 / 4)
    period = (1680 + 12 + 4 * sums) / blocks
    assert found.unit == unit
    assert found.share == pytest.approx(100 * memory / max(memory, period, 4 * sums))
    assert found.in_flight == pytest.approx(memory / period)
    assert found.cycles_per_byte == pytest.approx(4 * sums / 1024)
    assert (found.waves, found.bytes, found.loop) == (blocks, 1024, 0)


def code_of(source: str) -> Trace:
    return machine_code.parse(listing(source))["kernel"]


def test_a_share_of_the_matrix_unit_is_of_its_peak() -> None:
    """A product of 16 cycles and 16 sums of 4: a quarter of the time, on one SIMD with waves enough."""
    products = "v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]\n" + "v_add_f32_e32 v8, v8, v9\n" * 15
    source = f"again:\n{products}s_cbranch_scc1 -17 -> again\ns_endpgm"
    found = kernel_model.bound_of(Hot("kernel", "unit", "matrix"), MI300X, code_of(source), Compiled(), None)
    assert (found.unit, found.share, found.matrix) == ("vector", 25, 25)


def test_a_kernel_without_a_loop_is_named() -> None:
    with pytest.raises(SystemExit, match="kernel for gfx942 has no loop"):
        kernel_model.bound_of(Hot("kernel", "unit"), MI300X, code_of("s_endpgm"), Compiled(), None)


def test_every_launch_is_in_the_tuning_tables() -> None:
    planned = {(hot.name, device.name): kernel_model.planned_blocks(hot, device) for hot in HOT for device in DEVICES}
    assert all((planned[hot.name, device.name] is None) == (hot.blocks is None) for hot in HOT for device in DEVICES)
    for device in DEVICES:
        table = (ROOT / f"src/gpu/tuning/{device.tuning}.rs").read_text(encoding="utf-8")
        (blocks,) = re.findall(r"shapes_of_waves\(\[([\d, ]+)\]\)", table)
        assert [planned[f"matmul_q4_k_n{n}", device.name] for n in (8, 16, 32, 64)] == [*map(int, blocks.split(", "))]


def test_plans_and_exchanges_of_hot_kernels_are_checked() -> None:
    """More planned blocks than fit are a fault, and so are exchanges through LDS where there need be none."""
    good = Bound("gemv_q4_k", "MI300X", "memory", 100, 2.0, 0.2, 0.0, 2, 4608, 0, 3, 3, 0)
    assert good.faults() == []
    assert replace(good, planned=None, room=0).faults() == []
    (fault,) = replace(good, planned=4).faults()
    assert "4 blocks of a multiprocessor are planned, 3 fit" in fault
    (fault,) = replace(good, permutes=2).faults()
    assert "has 2 ds_bpermute" in fault
    assert replace(good, kernel="states", permutes=2).faults() == []


def bound(share: float, unit: str = "vector", device: str = "MI300X") -> Bound:
    return Bound("gemv_q4_k", device, unit, share, 2.0, 0.2, 0.0, 2, 4608, 0, 1, 1, 0)


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.md"
    path.write_text(f"before\n\n{kernel_table.BEGIN}\n{kernel_table.END}\n\nbehind\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("share", "faults", "remarks"),
    [(80, 0, 0), (72.5, 0, 0), (71.5, 1, 0), (88, 0, 0), (89, 0, 1)],
)
def test_a_bound_that_is_worse_by_ten_percent_is_a_fault(
    document: Path, share: float, faults: int, remarks: int
) -> None:
    kernel_table.write([bound(80)], document)
    found = kernel_table.compare([bound(share)], document.read_text(encoding="utf-8"))
    assert tuple(map(len, found)) == (faults, remarks)
    assert all("scripts/kernels/kernel_report.py --write" in message for messages in found for message in messages)


def test_a_bound_that_the_document_lacks_is_a_fault(document: Path) -> None:
    (fault,), _ = kernel_table.compare([bound(80)], document.read_text(encoding="utf-8"))
    assert fault.startswith("docs/kernels.md has no bound of gemv_q4_k on MI300X")


def test_what_was_not_compiled_stays_written(document: Path) -> None:
    kernel_table.write([bound(80), bound(70, device="Strix Halo")], document)
    kernel_table.write([bound(60)], document)
    text = document.read_text(encoding="utf-8")
    cells = {place: kernel_table.value(entry) for place, entry in kernel_table.read(text).items()}
    assert cells == {("gemv_q4_k", "MI300X"): ("vector", 60), ("gemv_q4_k", "Strix Halo"): ("vector", 70)}
    assert text.startswith("before\n\n<!--")
    assert text.endswith("-->\n\nbehind\n")


def test_tokens_per_second_follow_from_bytes() -> None:
    """4,617 MB of weights at 960 GB/s; half of the bandwidth for Q6_K, of which there are 1,257."""
    assert kernel_table.tokens_per_second({"q4_k": 100, "q6_k": 100}, 960, 1) == pytest.approx(960 / 4.617)
    assert kernel_table.tokens_per_second({"q4_k": 100, "q6_k": 50}, 960, 8) == pytest.approx(8 * 960 / (3.36 + 2.514))


def test_the_document_has_every_bound_and_what_follows_from_them() -> None:
    text = kernel_table.DOCUMENT.read_text(encoding="utf-8")
    cells = kernel_table.read(text)
    assert set(cells) == {(hot.name, device.name) for hot in HOT for device in DEVICES}
    assert all(kernel_table.value(entry)[1] <= 100 for entry in cells.values())
    assert kernel_table.written(text)[1].strip() == kernel_table.tables(cells)
