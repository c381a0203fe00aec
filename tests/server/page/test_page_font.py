"""The page has a font for formulas, with the tables by which a browser makes brackets and roots grow."""

import sys

from fontTools.ttLib import TTFont
from page_browser import ask, put_answer, set_sampling
from rust_source import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "data"))
import math_font

pytest_plugins = ("page_fixtures",)

# The first letters of alphabets, and letters in them that Unicode had before, at other places.
MOVED = {
    0x1D49C: "BEFHILMR",
    0x1D4B6: "ego",
    0x1D504: "CHIRZ",
    0x1D538: "CHNPQRZ",
    0x1D44E: "h",
}


def test_the_font_has_every_character_of_the_names():
    font = TTFont(math_font.TARGET)
    characters = {code for code in math_font.characters() if code >= 0x20}
    assert len(characters) > 600
    moved = {start + ord(letter.upper()) - ord("A") for start, letters in MOVED.items() for letter in letters}
    # STIX Math has no wide space, which no font need draw.
    assert characters - set(font.getBestCmap()) <= moved | {0x2003}
    growing = font["MATH"].table.MathVariants.VertGlyphCoverage.glyphs
    assert {font.getBestCmap()[ord(char)] for char in "([{|√∑∫"} <= set(growing)


def test_a_changed_font_has_another_name_and_its_licence():
    names = {record.nameID: str(record) for record in TTFont(math_font.TARGET)["name"].names}
    assert names[1] == names[4] == math_font.NAME
    assert "STI Pub Companies" in names[0]
    assert "SIL OPEN FONT LICENSE" in math_font.TARGET.with_name("OFL.txt").read_text(encoding="utf-8")


def test_a_formula_is_set_in_it(page):
    # Without a limit the small model may never end, and an answer is edited once it has ended.
    set_sampling(page, max_tokens=4)
    ask(page, "A formula?")
    put_answer(page, "$$\\left( \\sum_{i=1}^{n} \\sqrt{x_i} \\right)$$")
    page.locator("math").first.wait_for()
    page.wait_for_function(
        "name => [...document.fonts].some((font) => font.family.includes(name) && font.status === 'loaded')",
        arg=math_font.NAME,
    )
