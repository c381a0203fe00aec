"""Markdown and colours of code in the page, in the JavaScript program that the browser's driver brings along."""

import json
import subprocess

import pytest
from playwright._impl._driver import compute_driver_executable
from rocmforge.server.page import FOLDER

# Prints the milliseconds that a text of N repeats and one of FACTOR times as many take, the least of three.
PROGRAM = """
const { parseInline } = await import(process.argv[1] + "/inline.js");
const { parseBlocks } = await import(process.argv[1] + "/blocks.js");
const [begin, item, end] = JSON.parse(process.argv[2]);
const taken = (count) => Math.min(...[1, 2, 3].map(() => {
  const text = begin + item.repeat(count) + end.repeat(count);
  const started = performance.now();
  for (const block of parseBlocks(text)) if (block.text !== undefined) parseInline(block.text);
  return performance.now() - started;
}));
taken(100);
console.log(JSON.stringify([taken(3000), taken(3000 * 8)]));
"""
# Prints the same for the colours of code.
CODE_PROGRAM = """
const { highlight } = await import(process.argv[1] + "/highlight.js");
const [language, begin, item] = JSON.parse(process.argv[2]);
const taken = (count) => Math.min(...[1, 2, 3].map(() => {
  const code = begin + item.repeat(count);
  const started = performance.now();
  highlight(code, language);
  return performance.now() - started;
}));
taken(100);
console.log(JSON.stringify([taken(3000), taken(3000 * 8)]));
"""
TEXTS = {
    "pairs": ["", "**a** ", ""],
    "nested": ["", "*a ", "a* "],
    "open and closed": ["", "*a", "a*"],
    "mixed": ["", "*a **b ", "c** d* "],
    "brackets": ["", "[", "[a](b)"],
    "pictures": ["", "![", "](a)"],
    "spaces in a target": ["[a](", " ", ""],
    "spaces before a letter": ["a", " ", "b\n"],
    "brackets behind an address": ["http://a", ")", ""],
    "points in an address": ["http://a", ".", "a"],
    "addresses in a bracket": ["[(", "(http://", ""],
    "a quote that goes on": ["> a\n", "b\n", ""],
    "an item that goes on": ["- a\n", "b\n", ""],
    "marks of a heading": ["# ", " #", "x"],
    "spaces of a heading": ["# a", " ", "b"],
    "spaces of a fence": ["```", " ", "`"],
    "spaces of a table": ["|a|\n---", " ", "x"],
}


CODES = {
    "one word": ["rust", "", "a_"],
    "one number": ["python", "", "1_"],
    "spaces": ["yaml", "a", " "],
    "dashes": ["yaml", "", "-a"],
    "dashes without a word": ["css", "", "-"],
    "keys": ["toml", "", "a "],
    "brackets": ["toml", "", "["],
    "lines of brackets": ["toml", "", "[\n"],
    "strings": ["js", "", "'`"],
    "backslashes": ["js", '"', "\\\\"],
    "slashes": ["js", "=", " / ="],
    "comments that stay open": ["c", "", "/*"],
    "long strings that stay open": ["python", '"', '"" '],
    "underscores": ["cpp", "", "__a__a"],
    "tags": ["html", "", "<a "],
    "tags without a name": ["html", "", "<"],
    "comments of a page": ["html", "", "<!--"],
    "scripts": ["html", "", "<script>"],
    "lines of a diff": ["diff", "", "+\n"],
}


def assert_linear(program, argument):
    """H23: eight times the text takes some eight times as long, and not sixty-four times."""
    node, _ = compute_driver_executable()
    command = [node, "--input-type=module", "-e", program, str(FOLDER / "js" / "markdown"), json.dumps(argument)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    few, many = json.loads(done.stdout)
    # The least times are those of the clock and of the garbage collector.
    assert many < 32 * max(few, 5.0), (few, many)


@pytest.mark.parametrize("name", TEXTS)
def test_time_is_linear_in_the_text(name):
    """H23: the time grows with the text, not with its square."""
    assert_linear(PROGRAM, TEXTS[name])


@pytest.mark.parametrize("name", CODES)
def test_time_is_linear_in_the_code(name):
    """H23: the time grows with the code, not with its square."""
    assert_linear(CODE_PROGRAM, CODES[name])
