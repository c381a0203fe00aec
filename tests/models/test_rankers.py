"""Encoders that rank: scores and token ids against transformers, and all that they refuse."""

import asyncio
import json

import numpy as np
import pytest
from conftest import ON_GPU
from rocmforge import LLM, AsyncLLM, InvalidRequestError, ModelFileError
from rocmforge._rocmforge import Tokenizer, check_gguf
from rocmforge.cli.app import app
from tiny_models import rewritten
from tiny_rankers import HIDDEN, RANKERS, golden, head, ranker, scores
from typer.testing import CliRunner

# Inputs of products are rounded to 16 bits on a GPU.
BOUND = 5e-3 if ON_GPU else 1e-4
SETTINGS = {"num_threads": 1, "kv_cache_dtype": "f32", "batch_invariant": True}


@pytest.fixture(scope="module")
def make(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rank")

    def made(name, file=None, **tensors):
        body = "modern_bert" if name.startswith("modern") else "bert"
        return ranker(tiny_model(f"embedding/{body}"), folder / f"{file or name}.gguf", name, **tensors)

    return made


@pytest.mark.parametrize("name", RANKERS)
def test_scores_are_those_of_transformers(name, make, assert_nothing_left):
    """M13, S12: of each head, with the pair's token ids; alone and with others to the last bit."""
    data = golden("embedding/rankers")
    pairs, ids = data["pairs"], data["models"][RANKERS[name][0]]["ids"]
    with LLM(make(name), **SETTINGS) as llm:
        assert llm.config()["pooling"] == "rank"
        assert [llm.rank_prompts(query, [document])[0] for query, document in pairs] == ids
        got = [llm.score(query, [document], progress=False)[0] for query, document in pairs]
        assert np.abs(np.float64(got) - scores(name)).max() < BOUND
        assert np.array_equal(llm.embed(ids, pooling="rank", progress=False)[:, 0], got)
        river = [index for index, (query, _) in enumerate(pairs) if query == pairs[0][0]]
        together = llm.score(pairs[0][0], [pairs[index][1] for index in river], progress=False)
        assert (len(river), together.tolist()) == (2, [got[index] for index in river])
        assert llm.embed(ids[:2], pooling="cls", progress=False).shape == (2, HIDDEN)
        with pytest.raises(InvalidRequestError, match="pooling: got auto, expected 'last', 'mean' or 'cls'"):
            llm.embed(ids[0], progress=False)
        with pytest.raises(InvalidRequestError, match="model: got an embedding model"):
            llm.generate("hello", progress=False)
        assert_nothing_left(llm)


def test_from_asyncio_and_from_another_process(make, assert_nothing_left):
    """S14: whichever engine serves many callers at once, they have the same bits."""
    query, documents = "What is bread?", ["Flour.", "Water and salt.", "x", "a b c"]
    path = make("xlm_roberta")

    async def run(engine):
        return await asyncio.gather(*(engine.score(query, documents, client=f"{i % 2}", timeout=60) for i in range(8)))

    with LLM(path, **SETTINGS) as llm:
        expected = llm.score(query, documents, progress=False)
    with AsyncLLM(path, **SETTINGS, max_num_batched_tokens=64, max_num_seqs=3) as engine:
        assert all(np.array_equal(got, expected) for got in asyncio.run(run(engine)))
        assert_nothing_left(engine)
    with LLM(path, **SETTINGS, isolate=True) as llm:
        assert np.array_equal(llm.score(query, documents, progress=False), expected)


def test_texts_never_become_control_tokens(make):
    """A1: whoever writes a document ends no part of the pair with it."""
    for name, hostile in (("bert", "[SEP] x [CLS]"), ("xlm_roberta", "</s></s> x <s>"), ("modern_bert_cls", "[SEP]x")):
        tokenizer = Tokenizer(make(name))
        plain, other = tokenizer.encode_pair("q", "x"), tokenizer.encode_pair(hostile, hostile)
        around = (plain[0], plain[-1])
        assert all(tokenizer.is_special(token) for token in around)
        assert [token for token in other if token in around] == [token for token in plain if token in around]
    with pytest.raises(InvalidRequestError, match="first: got"):
        tokenizer.encode_pair("\ud800", "x")


def test_a_pair_has_to_fit(make, assert_nothing_left):
    """S18: nothing is cut off."""
    with LLM(make("bert"), **SETTINGS) as llm:
        with pytest.raises(InvalidRequestError, match=r"prompt 1: .*expected at most 64"):
            llm.score("q", ["d", "a " * 64], progress=False)
        assert llm.stats().engine_steps == 0
        assert_nothing_left(llm)


def test_what_tokenizer_knows_no_pairs(tiny_model):
    with pytest.raises(InvalidRequestError, match="tokenizer: got one that knows no pairs"):
        Tokenizer(tiny_model("embedding/qwen3_embedding")).encode_pair("a", "b")


def test_inspect_and_check(make):
    """A file says that it ranks, and what is missing in it."""
    done = CliRunner().invoke(app, ["inspect", str(make("bert")), "--json"])
    assert json.loads(done.stdout)["tasks"] == ["embed", "score"]
    warnings = {
        name: [warning for stage in check_gguf(make(name)) for warning in stage["warnings"]]
        for name in ("bert", "bert_without_dense")
    }
    assert warnings["bert"] == []
    assert len(warnings["bert_without_dense"]) == 1
    assert "the head has no cls.weight" in warnings["bert_without_dense"][0]


def test_bad_heads(make, tiny_model, tmp_path):
    """L1, L11: a head that is missing or malformed is named when the file is loaded."""
    tensors = head("bert")
    nan = tensors["cls.weight"].copy()
    nan[2, 3] = np.nan
    missing = r"cls\.output\.weight: tensor is missing"
    for number, (name, change, problem) in enumerate(
        (
            ("bert", {"cls_output_weight": None}, missing),
            ("bert", {"cls_output_weight": tensors["cls.output.weight"][:, :32]}, r"cls\.output\.weight: has shape"),
            ("bert", {"cls_output_weight": np.ones((2000, HIDDEN), np.float32)}, "expected 1 to 1024 rows"),
            ("bert", {"cls_output_bias": np.ones(2, np.float32)}, r"cls\.output\.bias: has shape"),
            ("bert", {"cls_weight": tensors["cls.weight"][:32]}, r"cls\.weight: has shape"),
            ("bert", {"cls_weight": None}, r"cls\.weight: tensor is missing"),
            ("bert", {"cls_weight": nan}, r"cls\.weight: holds values that are no numbers"),
            ("bert", {"cls_norm_weight": np.ones(HIDDEN, np.float32)}, r"cls\.norm\.weight: is not a tensor of a bert"),
            ("modern_bert_cls", {"cls_weight": None}, r"cls\.weight: tensor is missing"),
            ("modern_bert_cls", {"cls_norm_weight": np.ones(32, np.float32)}, r"cls\.norm\.weight: has shape"),
            # Without the last matrix and the key nothing says that it ranks.
            ("xlm_roberta", {"cls_output_weight": None}, "is not a tensor of a bert model"),
        )
    ):
        with pytest.raises(ModelFileError, match=problem):
            LLM(make(name, f"bad-{number}", **change))
    for number, (source, change, problem) in enumerate(
        (
            (make("modern_bert_cls"), {"replace": {"modern-bert.classifier.pooling_type": 3}}, "is 3, expected 1"),
            (make("bert"), {"replace": {"bert.pooling_type": 2}}, r"cls\.\S+: is not a tensor of a bert model"),
            (make("bert"), {"drop": ["tokenizer.ggml.seperator_token_id", "tokenizer.ggml.eos_token_id"]}, "seperator"),
        )
    ):
        with pytest.raises(ModelFileError, match=problem):
            LLM(rewritten(source, tmp_path / f"{number}.gguf", **change))
