"""Tests of the view that a notebook has of an engine and of its outputs."""

from html.parser import HTMLParser

import numpy as np
import pytest
from rocmforge import LLM, SamplingParams
from rocmforge.stats import BLOCK_STATES, byte_text

PARAMS = SamplingParams(max_tokens=4, n=2, temperature=1.0, seed=1, ignore_eos=True)


class Cells(HTMLParser):
    """The texts of a table's cells, as a browser reads them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.caption = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open
        self.rows = dict(zip(self.texts[::2], self.texts[1::2], strict=True))

    def handle_starttag(self, tag, attrs):
        assert tag in {"table", "caption", "tr", "th", "td"}
        self.open.append(tag)
        if tag in {"th", "td"}:
            self.texts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] == "caption":
            self.caption += data
        else:
            self.texts[-1] += data


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model("quant_models/Q4_0"), max_model_len=256, num_threads=1) as llm:
        yield llm


def test_an_engine_shows_what_it_is_and_does(tiny_model, assert_nothing_left):
    with LLM(tiny_model("quant_models/Q4_0"), max_model_len=256, num_threads=1) as llm:
        shown = Cells(llm._repr_html_())
        assert shown.caption == "LLM"
        assert shown.rows["model"] == str(llm.model)
        assert shown.rows["max_model_len"] == "256 tokens"
        assert shown.rows["requests"] == "0 running, 0 waiting"
        total = llm.stats().blocks_total
        assert shown.rows["KV blocks"] == f"{total} free, 0 cached of {total}"
        assert_nothing_left(llm)
    assert Cells(llm._repr_html_()).rows["state"] == "closed"


def test_outputs_are_texts_and_no_markup(llm, assert_nothing_left):
    """Text of a model or a client is shown as it is and can do nothing in the page."""
    prompt = "<script>alert(1)</script> & <b>"
    (output,) = llm.generate(prompt, PARAMS, progress=False)
    shown = Cells(output._repr_html_())
    assert shown.caption == f"RequestOutput {output.request_id}"
    assert shown.rows["prompt"].startswith(f"{prompt}\n({len(output.prompt_token_ids)} tokens, 0 of them")
    for one in output.outputs:
        assert shown.rows[f"output {one.index}"].startswith(one.text)
        assert shown.rows[f"output {one.index}"].endswith("(4 tokens, length)")
    assert shown.rows["seconds"].startswith("first token ")
    one = output.outputs[0]
    one.text, one.finish_reason, one.error = "<i>", "error", "the step failed"
    alone = Cells(one._repr_html_())
    assert alone.caption == "CompletionOutput 0"
    assert alone.rows == {"text": "<i>", "state": "4 tokens, error: the step failed"}
    assert_nothing_left(llm)


def test_outputs_of_a_call_are_a_table(llm, assert_nothing_left):
    """A row for each prompt, and for a data frame a row for each sequence."""
    outputs = llm.generate(["a", [3, 4]], PARAMS, progress=False)
    shown = Cells(outputs._repr_html_())
    assert shown.caption == "2 requests"
    assert list(shown.rows) == ["a", "2 tokens"]
    assert shown.rows["a"] == "\n".join(f"{one.text}\n(4 tokens, length)" for one in outputs[0].outputs)
    rows = outputs.rows()
    texts = [one.text for output in outputs for one in output.outputs]
    assert [row["text"] for row in rows] == texts
    assert [(row["index"], row["sequence"], row["prompt"]) for row in rows[1:3]] == [(0, 1, "a"), (1, 0, None)]
    assert {row["tokens"] for row in rows} == {4}
    many = type(outputs)(list(outputs) * 20)
    assert Cells(many._repr_html_()).caption == "40 requests, the first 20 of them"
    assert_nothing_left(llm)


def test_ids_have_no_text_to_show(llm, assert_nothing_left):
    (output,) = llm.generate([[3, 4]], PARAMS, progress=False)
    assert Cells(output._repr_html_()).rows["prompt"] == "2 tokens, 0 of them from the prefix cache"
    assert_nothing_left(llm)


def test_figures_of_an_engine_are_tables(llm):
    llm.generate("a", PARAMS)
    shown = Cells(llm.stats()._repr_html_())
    assert shown.caption == "Stats"
    assert shown.rows["num_running"] == "0"
    assert "length" in shown.rows["num_finished"]
    assert "[" not in "".join(shown.rows.values())
    memory = Cells(llm.memory()._repr_html_())
    assert set(memory.rows) == {"weights", "kv_cache", "scratch", "other", "host_weights", "kv_offload", "total"}
    assert memory.rows["total"].endswith(("kB", "MB", "GB"))


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (1_500, "1.50 kB"), (96_576_768, "96.6 MB"), (4_434_421_120, "4.43 GB")]
)
def test_bytes_have_units(count, text):
    assert byte_text(count) == text


def test_states_of_blocks_have_names(llm):
    llm.generate("a", PARAMS)
    states = np.array(BLOCK_STATES)[llm.block_map()["state"]]
    assert (states == "free").sum() == llm.stats().blocks_free
