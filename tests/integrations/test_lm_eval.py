"""integrations/lm-eval-rocmforge with the real lm-eval.

The oracle is tests/data/smollm2.json.xz: log-probabilities of transformers in 32-bit floats on the same weights.
"""

import json
import lzma
import os
from pathlib import Path

# The data set is a file.
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

import lm_eval
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from lm_eval_rocmforge import RocmForgeLM
from rocmforge import InvalidRequestError

GOLDEN = json.loads(lzma.decompress((Path(__file__).parents[1] / "data" / "smollm2.json.xz").read_bytes()))
TEXT = GOLDEN["perplexity"]
# Most of it comes from the KV cache in 16 bits and the activations in 8.
RELATIVE_NOISE = 0.01
DOCS = [
    {"question": "The capital of France is", "choices": [" Paris", " Berlin", " a river"], "answer": 0},
    {"question": "Two and two make", "choices": [" bread", " four", " the king"], "answer": 1},
    {"question": "The sun rises in the", "choices": [" east", " bottle", " spoon"], "answer": 0},
    {"question": "Water freezes into", "choices": [" gold", " paper", " ice"], "answer": 2},
]
TASK = {
    "task": "capitals",
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "test_split": "train",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "answer",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
}


def requests(kind, *arguments):
    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


@pytest.fixture(scope="module")
def model(smollm2_path):
    """Its prefix token is the first token of the golden text."""
    return RocmForgeLM(str(smollm2_path), max_model_len=1024, prefix_token_id=TEXT["ids"][0], progress=False)


def text_of(model, start, end):
    return model._llm.detokenize(TEXT["ids"][start:end])


def test_log_likelihoods_are_those_of_transformers(model):
    """Many requests at once: contexts of all lengths, and continuations of 1 to 12 tokens."""
    spans = [(0, at, at + 1 + at % 12) for at in range(5, 125, 2)]
    pairs = [(text_of(model, start, at), text_of(model, at, end)) for start, at, end in spans]
    tokens = [model._encode_pair(*pair) for pair in pairs]
    same = [index for index, (_, at, end) in enumerate(spans) if tokens[index][1] == TEXT["ids"][at:end]]
    assert len(same) > 40
    found = model.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    expected = [-sum(TEXT["nll_float"][at - 1 : end - 1]) for _, at, end in spans]
    errors = np.array([found[index][0] - expected[index] for index in same])
    sums = np.array([expected[index] for index in same])
    assert np.abs(errors).sum() < 2 * RELATIVE_NOISE * np.abs(sums).sum()
    assert np.abs(errors.sum() / sums.sum()) < RELATIVE_NOISE


def test_greedy_continuations_are_told(model):
    for prompt in GOLDEN["prompts"][:4]:
        ids = prompt["float_greedy_ids"][:3]
        other = [ids[0], ids[1], prompt["second_ids"][2]]
        assert min(prompt["float_gap"][:3]) > 0.05
        (_, greedy), (_, less) = model._loglikelihood_tokens([(None, prompt["ids"], ids), (None, prompt["ids"], other)])
        assert (greedy, less) == (True, False)


def test_the_log_likelihood_of_a_text_is_that_of_transformers(model):
    text = text_of(model, 1, None)
    assert model.tok_encode(text) == TEXT["ids"][1:]
    short = text_of(model, 1, 50)
    found, of_short = model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,), (short,)), True)
    assert found == pytest.approx(-sum(TEXT["nll_float"]), rel=RELATIVE_NOISE / 2)
    assert of_short == pytest.approx(-sum(TEXT["nll_float"][:49]), rel=RELATIVE_NOISE)


def test_a_long_text_is_scored_in_windows(smollm2_path, engine):
    """Each token is scored once, and those of the last window after a full context."""
    model = RocmForgeLM(str(smollm2_path), max_model_len=64, progress=False)
    ids = model.tok_encode(text_of(model, 1, 150), add_special_tokens=False)
    expected, done, size = 0.0, 0, 62
    while done < len(ids):
        end = min(done + size, len(ids))
        first = max(0, end - size)
        context = [model.prefix_token_id] if first == 0 else [ids[first - 1]]
        logits = engine.prompt_logits([*context, *ids[first:end]]).astype(np.float64)
        logprobs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        expected += sum(logprobs[at - first, ids[at]] for at in range(done, end))
        done = end
    (found,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", (text_of(model, 1, 150),)), True)
    assert found == pytest.approx(expected, rel=1e-4)


def test_text_is_generated_until_a_stop(model):
    prompts = [prompt for prompt in GOLDEN["prompts"] if prompt["kind"] == "plain"][:4]
    given = {"until": ["\n", ""], "max_gen_toks": 4}
    asked = [(prompt["text"], given | {"do_sample": False} if index else given) for index, prompt in enumerate(prompts)]
    texts = model.generate_until(requests("generate_until", *asked), disable_tqdm=True)
    for text, prompt in zip(texts, prompts, strict=True):
        golden = model._llm.detokenize(prompt["float_greedy_ids"][:4], skip_special=True).partition("\n")[0]
        assert min(prompt["float_gap"][:4]) < 0.05 or text == golden
    assert texts[0] == " Paris."


def test_a_task_is_evaluated(smollm2_path, tmp_path):
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    task = TASK | {"dataset_kwargs": {"data_files": str(tmp_path / "docs.jsonl")}}
    arguments = {"pretrained": str(smollm2_path), "max_model_len": 256, "progress": False}
    assert get_model("rocmforge") is RocmForgeLM
    results = lm_eval.simple_evaluate(
        "rocmforge", arguments, tasks=[task], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0
    )
    assert results["results"]["capitals"]["acc,none"] == 1.0


def test_chats_and_prefixes(smollm2_path):
    model = RocmForgeLM(str(smollm2_path), max_model_len=256, progress=False, device=None)
    text = model.apply_chat_template([{"role": "user", "content": "Hello"}])
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    begun = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "I am"}]
    assert model.apply_chat_template(begun, add_generation_prompt=False).endswith("assistant\nI am")
    assert model.tok_encode(text)[0] == model.prefix_token_id == 1
    assert model.tok_encode("<|im_end|>") == [model.eot_token_id]
    assert model.chat_template(True) == GOLDEN["model"]["chat_template"]
    assert model.tokenizer_name == smollm2_path.name


def test_what_is_too_long(smollm2_path, caplog):
    model = RocmForgeLM(str(smollm2_path), max_model_len=64, progress=False)
    ids = model.tok_encode(text_of(model, 0, 200))
    whole, tail = model._loglikelihood_tokens([(None, ids[:150], ids[150:160]), (None, ids[97:150], ids[150:160])])
    assert whole == tail
    assert "the beginning was cut off" in caplog.text
    with pytest.raises(InvalidRequestError, match="continuation: got 63 tokens, expected fewer than 63"):
        model._loglikelihood_tokens([(None, ids[:5], ids[5:68])])
    with pytest.raises(InvalidRequestError, match="max_gen_toks: got a value that leaves no room"):
        model.generate_until(requests("generate_until", ("Hello", {"max_gen_toks": 64})))
    assert model.loglikelihood([]) == []
