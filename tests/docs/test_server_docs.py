"""docs/server.md lists every endpoint, parameter, setting and metric, as the code has them."""

from server_tables import DOCUMENT, written


def test_tables_are_those_of_the_code(model):
    """`python tests/docs/server_tables.py MODEL` writes them anew."""
    assert written(model) == DOCUMENT.read_text(encoding="utf-8")
