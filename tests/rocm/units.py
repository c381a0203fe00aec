"""The units that the engine compiles for a GPU, and its options, as its sources have them."""

import re

from rust_source import SRC

COMPILE = SRC / "gpu" / "compile"
TABLE, PLAN, RUNTIME = (
    (COMPILE / name).read_text(encoding="utf-8") for name in ("kernel_table.rs", "plan.rs", "runtime.rs")
)
# Rust's names of tensor types, ggml's, and the numbers that they are multiplied in on matrix units.
TYPES = re.findall(r"^ {12}(\w+) (\w+) (\w+)$", TABLE.split("macro_rules! with_kernels ")[0], re.MULTILINE)
# Kernels that are neither for a type nor for a pair are in one unit of their file.
PLAIN = {"Once", "Cache", "LatentCache", "Head", "VectorHead", "MatrixHead"}


def pairs() -> list[tuple[str, str]]:
    """ggml's names of types that lie in one stack."""
    names = {rust: ggml for rust, ggml, _ in TYPES}
    (listed,) = re.findall(r"const PAIRS: .*? = (\[\[.*?\]\]);", PLAN)
    return [(names[a], names[b]) for a, b in re.findall(r"Self::(\w+), Self::(\w+)", listed)]


def units() -> dict[str, list[str]]:
    """The definitions of each unit that AMD GPUs have, by its name."""
    found: dict[str, list[str]] = {}
    for file, multiplies, body in re.findall(
        r'^ {12}"(\w+)\.hip" \w+ (\w+) \{(.*?)^ {12}\}', TABLE, re.MULTILINE | re.DOTALL
    ):
        compiled_for = set(re.findall(r"^ {16}\w+(?: as \w+)?: \w+, (\w+),", body, re.MULTILINE))
        assert compiled_for <= PLAIN | {"Type", "Pair"}, f"{file}: {compiled_for}"
        if compiled_for & PLAIN:
            found[file] = []
        if "Type" in compiled_for:
            for _, ggml, operands in TYPES:
                if multiplies == "Plainly" or operands != "Nothing":
                    found[f"{file}.{ggml.lower()}"] = [f"-DTYPE={ggml}"]
        if "Pair" in compiled_for:
            for first, second in pairs():
                found[f"{file}.{first}_{second}".lower()] = [f"-DTYPE={first}", f"-DSECOND={second}"]
    return found


def options(target: str) -> list[str]:
    """The options for a target, without the unit's definitions."""
    (listed,) = re.findall(r"Platform::Amd => \{\s*vec!\[(.*?)\]", RUNTIME, re.DOTALL)
    return [option.replace("{arch}", target) for option in re.findall(r'"(.*?)"', listed)]
