"""The library jsonschema-rs, which reads regular expressions of ECMAScript as schemas mean them, validates what is
written for the schemas of JSON Schema's own test suite."""

import json
import lzma
import sys

import jsonschema_rs
import pytest
from json_schema_suite import FOLDER
from rocmforge import LLM, InvalidRequestError, SamplingParams, StructuredOutputsParams

MAX_TOKENS = 100


@pytest.fixture(scope="module")
def groups():
    """Returns schemas by their names."""
    suite = json.loads(lzma.decompress((FOLDER / "suite.json.xz").read_bytes()))
    return {f"{group['file']}: {group['description']}": group["schema"] for group in suite}


@pytest.fixture(scope="module")
def refused():
    """Returns the names of the schemas that are known to be refused."""
    reasons = json.loads((FOLDER / "deviations.json").read_text("utf-8"))["refused"]
    return {name for names in reasons.values() for name in names}


def finite(text):
    """JSON's numbers have no limits; infinity, which Python would make of some, is not among them."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def test_what_is_written_is_valid(long_model, groups, refused, assert_nothing_left):
    complete, errors = [], set()
    with LLM(long_model, max_model_len=1024, max_num_seqs=16, num_threads=1, seed=3) as llm:
        for name, schema in groups.items():
            if not isinstance(schema, dict):
                continue
            form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
            params = SamplingParams(n=4, max_tokens=MAX_TOKENS, seed=5, structured_outputs=form)
            try:
                output = llm.generate(["x"], params)[0]
            except InvalidRequestError:
                errors.add(name)
                continue
            for text in (one.text for one in output.outputs if one.finish_reason == "stop"):
                value = json.loads(text, parse_float=finite)
                jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(value)
                complete.append(name)
        assert_nothing_left(llm)
    assert errors == {name for name in refused & groups.keys() if isinstance(groups[name], dict)}
    assert len(set(complete)) > (len(groups) - len(errors)) // 2
