"""`SamplingParams`: checked when made, immutable, equal by value."""

import copy
import inspect
import pickle
from enum import Enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocmforge import InvalidRequestError, RequestOutputKind, SamplingParams

FIELDS = list(inspect.signature(SamplingParams).parameters)


def valid():
    """Keyword arguments within all limits."""
    unit = st.floats(0, 1, width=32)
    texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
    return st.fixed_dictionaries(
        {},
        optional={
            "n": st.integers(1, 64),
            "max_tokens": st.integers(100, 10_000),
            "min_tokens": st.integers(0, 100),
            "temperature": st.floats(0, 10, width=32),
            "top_p": st.floats(0, 1, width=32, exclude_min=True),
            "top_k": st.integers(0, 1000),
            "min_p": unit,
            "repetition_penalty": st.floats(0.5, 2, width=32),
            "presence_penalty": st.floats(-2, 2, width=32),
            "frequency_penalty": st.floats(-2, 2, width=32),
            "logit_bias": st.dictionaries(st.integers(0, 2**32 - 1), st.floats(-100, 100, width=32), max_size=5),
            "stop": st.lists(texts, max_size=4),
            "stop_token_ids": st.lists(st.integers(0, 2**32 - 1), max_size=5),
            "ignore_eos": st.booleans(),
            "seed": st.integers(0, 2**64 - 1),
            "logprobs": st.integers(0, 20),
            "prompt_logprobs": st.integers(0, 20),
            "skip_special_tokens": st.booleans(),
            "include_stop_str_in_output": st.booleans(),
            "output_kind": st.sampled_from(["cumulative", "delta", "final_only"]),
        },
    )


@given(valid())
def test_values_are_kept(fields):
    params = SamplingParams(**fields)
    for name, value in fields.items():
        got = getattr(params, name)
        assert got == (pytest.approx(value, rel=1e-6) if isinstance(value, float | dict) else value), name


@given(valid())
def test_repr_pickle_copy_and_replace_give_the_same(fields):
    params = SamplingParams(**fields)
    assert eval(repr(params), {"SamplingParams": SamplingParams}) == params
    assert pickle.loads(pickle.dumps(params)) == params
    assert copy.deepcopy(params) == params
    assert params.replace() == params
    changed = params.replace(top_k=params.top_k + 1)
    assert changed.top_k == params.top_k + 1
    assert changed != params


# The range of each field, by its own documentation; `None` stands for "no value is too large".
BAD = {
    "n": [0, -1, 1 << 70],
    "max_tokens": [0, -5],
    "min_tokens": [-1, 257],
    "temperature": [-0.01, float("nan"), float("inf"), -float("inf")],
    "top_p": [0.0, -0.5, 1.01, float("nan")],
    "top_k": [-2],
    "min_p": [-0.1, 1.1, float("nan")],
    "repetition_penalty": [0.0, -1.0, float("nan"), float("inf")],
    "presence_penalty": [-2.1, 2.1, float("nan")],
    "frequency_penalty": [-2.1, 2.1, float("nan")],
    "logit_bias": [{-1: 0.0}, {1 << 32: 0.0}, {3: float("nan")}],
    "stop": ["", ["a", ""], "\ud800", ["a", "\ud800"]],
    "stop_token_ids": [[-1], [1 << 32], np.array([-1])],
    "seed": [-2, 1 << 64],
    "logprobs": [-1, 1 << 40],
    "prompt_logprobs": [-1, 1 << 40],
    "output_kind": ["", "all"],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_bad_sampling_params_are_refused(field, value):
    """S22: zero, negative, too large and not-a-number are errors that name the field."""
    with pytest.raises(InvalidRequestError, match=field.split("_", maxsplit=1)[0]) as caught:
        SamplingParams(**{field: value})
    assert isinstance(caught.value, ValueError)
    assert "expected" in str(caught.value)


WRONG_TYPE = [*((field, "x") for field in FIELDS if field not in ("stop", "output_kind")), ("stop", 5), ("stop", [5])]


MORE = [("n", None), ("max_tokens", 1.5), ("output_kind", 3), ("output_kind", 0), ("logit_bias", {3: "x"})]


@pytest.mark.parametrize(("field", "value"), [*WRONG_TYPE, *MORE])
def test_wrong_types_are_type_errors_that_name_the_field(field, value):
    """A20: all fields, and the values in them."""
    with pytest.raises(TypeError, match=field):
        SamplingParams(**{field: value})


@given(
    st.sampled_from(FIELDS), st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())
)
def test_any_value_is_taken_or_refused(field, value):
    """S22: nothing but TypeError and InvalidRequestError, whatever comes."""
    try:
        params = SamplingParams(**{field: value})
    except (TypeError, InvalidRequestError):
        return
    assert params == SamplingParams(**{field: value})


def test_numpy_scalars_and_arrays_are_numbers():
    plain = SamplingParams(n=3, temperature=0.5, stop_token_ids=[1, 2], seed=7, logit_bias={4: 1.5})
    numpy = SamplingParams(
        n=np.int64(3),
        temperature=np.float32(0.5),
        stop_token_ids=np.array([1, 2], dtype=np.uint16),
        seed=np.uint64(7),
        logit_bias={np.int32(4): np.float64(1.5)},
    )
    assert numpy == plain


def test_one_stop_string_is_a_list_of_one():
    assert SamplingParams(stop="END") == SamplingParams(stop=["END"])


def test_immutable_and_unhashable():
    params = SamplingParams()
    with pytest.raises(AttributeError):
        params.n = 2
    with pytest.raises(TypeError):
        hash(params)


def test_signature_shows_the_defaults():
    defaults = {name: parameter.default for name, parameter in inspect.signature(SamplingParams).parameters.items()}
    params = SamplingParams()
    assert [name for name in FIELDS if (defaults[name] or None) != (getattr(params, name) or None)] == []


def test_values_that_stand_for_none():
    """A20: as in vLLM."""
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=np.int64(-1)) == SamplingParams(top_k=0)
    assert SamplingParams(seed=-1) == SamplingParams(seed=None) == SamplingParams()
    unbounded = SamplingParams(max_tokens=None, min_tokens=1000)
    assert unbounded.max_tokens is None
    assert pickle.loads(pickle.dumps(unbounded)) == unbounded.replace() == unbounded
    assert eval(repr(unbounded), {"SamplingParams": SamplingParams}) == unbounded


class Numbered(Enum):
    """An enum of the kinds as another engine has it."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_output_kind_as_an_enumeration(kind):
    """A20: ours, and one whose members are called the same."""
    params = SamplingParams(output_kind=kind)
    assert params == SamplingParams(output_kind=kind.value) == SamplingParams(output_kind=Numbered[kind.name])
    assert params.output_kind == kind
