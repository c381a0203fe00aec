#!/usr/bin/env python3
"""Makes the font of the page's formulas from STIX Math, which Debian's package fonts-stix has: math_font.py FILE

The subset has the characters of `page/js/math/`, letters of mathematical alphabets, and the pieces of which brackets,
roots and arrows grow. Its licence does not let a changed font keep its name.
"""

import re
import sys
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

PAGE = Path(__file__).parents[2] / "python" / "rocmforge" / "server" / "page"
TARGET = PAGE / "font" / "math.woff"
NAME = "Rocmforge Math"
# Browsers show single letters in these italics; h has an older place.
ITALICS = {*range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C), 0x210E}
# They draw this one by themselves.
ROOT = 0x221A


def characters() -> set[int]:
    """Returns the characters that a formula may show."""
    texts = [file.read_text(encoding="utf-8") for file in (PAGE / "js" / "math").glob("*.js")]
    # The first letters and digits of the alphabets.
    starts = {int(code, 16) for text in texts for code in re.findall(r"0x(1d[4-7][0-9a-f]{2})", text)}
    alphabets = {start + number for start in starts for number in range(10 if start >= 0x1D7CE else 26)}
    return {ord(char) for text in texts for char in text} | set(range(0x20, 0x7F)) | alphabets | ITALICS | {ROOT}


def main(source: Path) -> None:
    font = TTFont(source, recalcTimestamp=False)
    options = subset.Options(layout_features=["ssty", "dtls", "flac"], drop_tables=["FFTM", "GPOS"])
    options.name_IDs, options.notdef_outline = [0, 1, 2, 4, 6, 7, 13, 14], True
    maker = subset.Subsetter(options)
    maker.populate(unicodes=characters())
    maker.subset(font)
    for record in font["name"].names:
        if record.nameID in {1, 4, 6}:
            record.string = NAME if record.nameID != 6 else NAME.replace(" ", "")
    outlines = font["CFF "].cff
    outlines.fontNames = [NAME.replace(" ", "")]
    outlines.topDictIndex[0].FullName = outlines.topDictIndex[0].FamilyName = NAME
    font.flavor = "woff"
    TARGET.parent.mkdir(exist_ok=True)
    font.save(TARGET)
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes, {len(font.getGlyphOrder())} glyphs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
