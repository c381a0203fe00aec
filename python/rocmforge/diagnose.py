"""What a file holds and whether it is valid; what a machine offers, and whether its devices compute rightly.

`rocmforge.inspect`, `rocmforge.check` and `rocmforge.doctor` are these functions; the others are the parts of
`rocmforge doctor --test`. The classes of their reports are in `rocmforge.reports`.
"""

from rocmforge._rocmforge import (
    check,
    check_device,
    device_bandwidth,
    device_cases,
    device_launches,
    device_matrix_library,
    device_repeats,
    doctor,
    embedded_targets,
    inspect,
)

__all__ = [
    "check",
    "check_device",
    "device_bandwidth",
    "device_cases",
    "device_launches",
    "device_matrix_library",
    "device_repeats",
    "doctor",
    "embedded_targets",
    "inspect",
]
