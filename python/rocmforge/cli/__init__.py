"""The command line. Its packages are imported when it runs: `pip install rocmforge[cli]` brings them."""

import os
import signal
import sys

MISSING = "the command line needs the packages typer and rich, of which {name} is missing: pip install 'rocmforge[cli]'"


def main() -> None:
    """Exit codes: 0, 1 for a failure, 2 for wrong usage, 130 for Ctrl-C."""
    code = _run()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = code or _failed(str(error))
        # Python would try once more at its end, and complain at length.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run() -> int | str | None:
    try:
        if sys.argv[1:] == ["--version"]:
            from rocmforge.cli.version import version_line  # noqa: PLC0415

            sys.stdout.write(f"{version_line()}\n")
            return 0
        # An interrupted import ends the program without a traceback, and is not taken for a package that fails.
        handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
        from rocmforge.cli.app import app  # noqa: PLC0415

        signal.signal(signal.SIGINT, handler)
        app()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "click", "rich"):
            raise
        return _failed(MISSING.format(name=error.name))
    except OSError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return end.code
    return 0


def _failed(message: str) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"error: {message}\n")
    return 1
