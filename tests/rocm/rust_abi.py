"""AMD's numbers, structures and functions, as the engine's sources declare them."""

import re
from dataclasses import dataclass

from rust_source import SRC

GPU = SRC / "gpu"
HIP, RTC, BLASLT, COMMON = (
    (GPU / "sys" / name).read_text(encoding="utf-8") for name in ("hip.rs", "rtc.rs", "blaslt.rs", "mod.rs")
)
BLAS = (GPU / "vendor" / "blas.rs").read_text(encoding="utf-8")
ERRORS = (GPU / "driver" / "error.rs").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Function:
    name: str
    arguments: tuple[str, ...]
    result: str


def constants(text: str) -> dict[str, int]:
    found = re.findall(r"^pub\(\w+\) const (\w+): (?:c_int|c_uint|usize|u32|i32) = (\d+);$", text, re.MULTILINE)
    return {name: int(value) for name, value in found}


def dialect() -> dict[str, int]:
    """The numbers of hipBLASLt; those of a pair are `name[0]` and `name[1]`."""
    (body,) = re.findall(r"const HIPBLASLT: Dialect = Dialect \{(.*?)\n\};", BLASLT, re.DOTALL)
    single = {name: int(value) for name, value in re.findall(r"(\w+): (\d+),", body)}
    pairs = re.findall(r"(\w+): \[(\d+), (\d+)\],", body)
    return single | {f"{name}[{i}]": int(value) for name, *both in pairs for i, value in enumerate(both)}


def lost_devices() -> set[int]:
    """The codes after which a device counts as lost."""
    (arms,) = re.findall(
        r"match self\.code \{\n\s*OUT_OF_MEMORY => .*?,\n(.*?)=> Failure::DeviceLost", ERRORS, re.DOTALL
    )
    arms = re.sub(r"//.*", "", arms)
    codes = set()
    for first, last in re.findall(r"(\d+)(?:\.\.=(\d+))?", arms):
        codes |= set(range(int(first), int(last or first) + 1))
    return codes


def table(text: str, name: str) -> list[Function]:
    """The functions of an `api!`."""
    (body,) = re.findall(rf"\n    {name} \{{\n(.*?)\n    \}}", text, re.DOTALL)
    found = re.findall(r"fn (\w+)\(([^)]*)\) -> ([^;]+);", body)
    return [Function(function, split(arguments), result) for function, arguments, result in found]


def hipblaslt() -> list[Function]:
    """The functions that `Api::load` looks up, with the types that it takes them for."""
    shapes = re.findall(r'type (\w+) = unsafe extern "C" fn\(([^)]*)\) -> (\w+);', BLASLT)
    types = {name: (split(arguments), result) for name, arguments, result in shapes}
    (fields,) = re.findall(r"\nstruct Api \{(.*?)\n\}", BLAS, re.DOTALL)
    typed = dict(re.findall(r"(\w+): (\w+),", fields))
    looked_up = [
        (name, typed[field]) for field, name in re.findall(r'(\w+): symbol\(&library, dialect, "(\w+)"\)', BLAS)
    ]
    looked_up += [(name, kind) for kind, name in re.findall(r'symbol::<(\w+)>\(&library, dialect, "(\w+)"\)', BLAS)]
    return [Function(f"hipblasLt{name}", *types[kind]) for name, kind in looked_up]


def split(arguments: str) -> tuple[str, ...]:
    return tuple(argument.strip() for argument in arguments.split(",") if argument.strip())


# Values and pointers of one size are passed alike. Device addresses are numbers in Rust.
KINDS = {
    "c_int": {"4"},
    "c_uint": {"4"},
    "i32": {"4"},
    "Status": {"4"},
    "usize": {"8"},
    "i64": {"8"},
    "u64": {"8", "pointer"},
    "HostFunction": {"pointer"},
}


def kinds(rust: str) -> set[str]:
    """How C may pass an argument that Rust has as this type."""
    return {"pointer"} if rust.startswith("*") or rust.endswith("Handle") else KINDS[rust]
