"""Packs JSON Schema's own test suite for test_json_schema_suite.py and the Rust tests (src/grammar/tests/suite.rs).

`python tests/structured/json_schema_suite.py CHECKOUT` reads a checkout of
github.com/json-schema-org/JSON-Schema-Test-Suite and writes tests/data/json_schema/suite.json.xz: the groups of draft
2020-12, each with a schema and instances that are valid or not. `format.json` is left out, which says that a format
asserts nothing: here one does, as in `optional/format`. The suite's licence (MIT) is kept beside it, as LICENSE.
"""

import json
import lzma
import shutil
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "data" / "json_schema"
DRAFT = Path("tests", "draft2020-12")


def groups(checkout):
    for path in sorted((checkout / DRAFT).rglob("*.json")):
        name = path.relative_to(checkout / DRAFT).with_suffix("").as_posix()
        if name != "format":
            for group in json.loads(path.read_text("utf-8")):
                yield {"file": name, **{key: group[key] for key in ("description", "schema", "tests")}}


def main():
    checkout = Path(sys.argv[1])
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(list(groups(checkout)), separators=(",", ":"))
    (FOLDER / "suite.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))
    shutil.copy(checkout / "LICENSE", FOLDER / "LICENSE")


if __name__ == "__main__":
    main()
