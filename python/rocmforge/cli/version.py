"""The text that `rocmforge --version` prints."""

from rocmforge._rocmforge import __version__, embedded_targets


def version_line() -> str:
    """The version, and for which AMD GPUs this build carries kernels."""
    return f"rocmforge {__version__} (AMD kernels: {embedded_line()})"


def embedded_line() -> str:
    """The targets with kernels in this build; on others, hipRTC compiles them at the first load."""
    return ", ".join(embedded_targets()) or "none embedded"
