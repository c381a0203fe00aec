"""A model of lm-eval that evaluates GGUF models in process, with rocmforge.

>>> import lm_eval
>>> from lm_eval_rocmforge import RocmForgeLM
>>> lm_eval.simple_evaluate(RocmForgeLM("model.gguf"), tasks=["arc_easy"])
"""

from lm_eval_rocmforge.model import RocmForgeLM

__all__ = ["RocmForgeLM", "main"]


def main() -> None:
    """Runs the command line of lm-eval, which knows the model `rocmforge` by the import above."""
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-untyped] # noqa: PLC0415

    cli_evaluate()
