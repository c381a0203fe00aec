"""Importing rocmforge is cheap: what only some programs need is imported by those."""

import json
import subprocess
import sys

HEAVY = ["asyncio", "typer", "click", "rich", "pydantic", "json", "fastapi", "matplotlib"]


def loaded(code):
    script = f"{code}\nimport json as j, sys; print(j.dumps([m for m in {HEAVY} if m in before]))"
    command = [sys.executable, "-c", script]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_import_brings_in_nothing_heavy():
    alone = loaded("import sys, numpy; before = set(sys.modules)")
    assert loaded("import sys, numpy, rocmforge; before = set(sys.modules)") == alone


def test_async_llm_is_there_when_asked_for():
    code = "import sys, rocmforge; rocmforge.AsyncLLM; from rocmforge import *; before = set(sys.modules)"
    assert "asyncio" in loaded(code)


def test_everything_public_is_documented():
    code = (
        "import rocmforge\n"
        "for name in rocmforge.__all__:\n"
        "    thing = getattr(rocmforge, name)\n"
        "    assert isinstance(thing, str) or thing.__doc__, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
