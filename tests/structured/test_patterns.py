"""Patterns of JSON schemas as regular expressions of whole texts: a model writes by them all that Python's `re` finds.

Where ECMA-262 says something else than `re`, the texts are given.
"""

import itertools
import re

import pytest
from rocmforge import LLM, SamplingParams, StructuredOutputsParams
from rocmforge.parsing.grammars.patterns import PatternError, quoted, whole


@pytest.fixture(scope="module")
def llm(long_model):
    with LLM(long_model, max_model_len=128, max_num_seqs=16, num_threads=1, seed=3) as llm:
        yield llm


def written(llm, patterns, alphabet):
    """The texts of at most two characters of an alphabet that the model writes by each pattern."""
    shorter = f"/[{''.join(map(quoted, alphabet))}]{{0,2}}/"
    params = [
        SamplingParams(
            n=192,
            seed=1,
            temperature=50.0,
            max_tokens=20,
            structured_outputs=StructuredOutputsParams(
                grammar=f'start: "<" TEXT ">"\nTEXT: /{whole(pattern)}/ & {shorter}'
            ),
        )
        for pattern in patterns
    ]
    outputs = llm.generate(["x"] * len(params), params, progress=False)
    return [{one.text[1:-1] for one in output.outputs} for output in outputs]


@pytest.mark.parametrize(
    ("alphabet", "patterns"),
    [
        ("ab", ["a", "^a", "a$", "^a$", "", "^$", "^a|b$", "a|^b", "^(?:a|b)$", "(a|)b", "^(?<name>a)+?$", "^a??b*$"]),
        ("ab", ["^a{2}$", "^a{1,}", "^a{0,1}$", "^[ab]{2}?$", "^(a|b){1,2}$", "[^a]", "^[^b]*$"]),
        ("a1_", [r"\d", r"^\D*$", r"^\w\W?$", r"[\d_]", r"^[^\d]+$", r"^[\Da]+$", r"[a-z\d]", r"^.\d"]),
        ("/.\\", [r"^/", r"\/", r"\.", r"^\\", "[.]", r"[\\/]", "^[.-/]+$"]),
        ("-]{", [r"[-\]]", r"^[\-\]]+$", "^{$", "-{", r"]", r"^\{"]),
        ("\r\t ", [r"^\s$", r"\t", r"^\S?$", r"\x09", r"^[\r ]$", "\r"]),
        ("\na", ["\n", r"^\s", r"\S", r"[^\n]", "^a.", r"^.\n"]),
        ("é€a", [r"\u00e9", "€", r"^[à-ÿ]+$", r"^\W$", "^[^a]+$", "^..$"]),
        ('"|<', ['^"', r"\|", "^[|]", "<+$"]),
        ("^$a", [r"\^", r"\$$", "[$^]", "^[^$]+$"]),
    ],
)
def test_texts_are_those_that_python_finds(llm, alphabet, patterns, assert_nothing_left):
    texts = ["".join(each) for size in range(3) for each in itertools.product(alphabet, repeat=size)]
    found = [re.compile(pattern.replace("?<", "?P<"), re.ASCII) for pattern in patterns]
    expected = [{text for text in texts if each.search(text)} for each in found]
    assert written(llm, patterns, alphabet) == expected
    assert_nothing_left(llm)


def test_what_ecma_says_otherwise(llm, assert_nothing_left):
    """Line terminators beside the line feed, white space that is not ASCII, and codes in braces."""
    alphabet = "\r\ufeffa"
    assert written(llm, ["^.$", r"^\s+$", r"^\u{61}$", r"^[\b\0]?a$"], alphabet) == [
        {"\ufeff", "a"},
        {"\r", "\ufeff", "\r\ufeff", "\ufeff\r", "\r\r", "\ufeff\ufeff"},
        {"a"},
        {"a"},
    ]
    assert_nothing_left(llm)


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("(?=a)b", r"got '\(\?=a\)b' at 0 of .*, expected no lookarounds"),
        ("(?<!a)b", "expected no lookarounds"),
        ("(?i)a", "expected no lookarounds"),
        ("a^b", r"got '\^b' at 1"),
        ("(^a)", "anchors only around the whole"),
        ("(a$)", "anchors only around the whole"),
        ("a$b", "anchors only around the whole"),
        (r"(a)\1", r"got '\\\\1' at 3 of .*, expected no references"),
        (r"\bword", "no references to groups, borders of words"),
        (r"\p{L}", "properties of characters"),
        (r"\ud800", "codes of characters"),
        ("(a", r"got its end of .*, expected a \) at the end"),
        ("a)", r"got a \) without a group at 1"),
        ("[a", "expected more of it"),
        ("a\\", "expected more of it"),
        ("[]a", "a class with characters in it"),
        (r"[a-\d]", "single characters at the ends of a range"),
        ("*a", "something before a count"),
        ("a{2}{3}", "something before a count"),
        ("a{3,2}", "counts in order"),
        ("a{100001}", "of at most 100000"),
    ],
)
def test_patterns_that_are_refused(pattern, match):
    with pytest.raises(PatternError, match=match):
        whole(pattern)
