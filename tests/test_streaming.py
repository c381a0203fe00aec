"""`LLM.stream` and `LLM.stream_chat`: outputs as they come, without an event loop."""

import itertools

import pytest
from rocmforge import LLM, InvalidRequestError, SamplingParams

LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, output_kind="delta")


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model("quant_models/Q4_0"), max_num_seqs=4) as llm:
        yield llm


def test_deltas_sum_up_to_what_generate_returns(llm, assert_nothing_left):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    whole = llm.generate("ab", params, progress=False)[0]
    outputs = list(llm.stream("ab", params.replace(output_kind="delta")))
    assert "".join(output.outputs[0].text for output in outputs) == whole.outputs[0].text
    ids = itertools.chain.from_iterable(output.outputs[0].token_ids for output in outputs)
    assert list(ids) == whole.outputs[0].token_ids
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert {output.prompt for output in outputs} == {"ab"}
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert_nothing_left(llm)


def test_by_default_each_output_holds_all_so_far(llm, assert_nothing_left):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    texts = [output.outputs[0].text for output in llm.stream([5, 6, 7], params)]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert_nothing_left(llm)


def test_leaving_the_loop_ends_the_request(llm, assert_nothing_left):
    aborted = llm.stats().num_finished["abort"]
    for _ in llm.stream("ab", LONG):
        break
    assert_nothing_left(llm)
    stream = llm.stream("ab", LONG)
    next(stream)
    stream.close()
    assert_nothing_left(llm)
    assert llm.stats().num_finished["abort"] - aborted == 2


def test_several_streams_at_once(llm, assert_nothing_left):
    alone = [list(llm.stream(prompt, LONG)) for prompt in ("ab", "cd")]
    streams = [llm.stream(prompt, LONG) for prompt in ("ab", "cd")]
    texts = ["", ""]
    for pair in itertools.zip_longest(*streams):
        for index, output in enumerate(pair):
            texts[index] += "" if output is None else output.outputs[0].text
    assert texts == ["".join(output.outputs[0].text for output in outputs) for outputs in alone]
    assert_nothing_left(llm)


def test_what_cannot_be_served_raises_at_the_first_output(llm, assert_nothing_left):
    stream = llm.stream([1, 2, 10**6])
    with pytest.raises(InvalidRequestError, match="token id"):
        next(stream)
    assert_nothing_left(llm)


def test_conversations_stream_as_chat_answers(smollm2_path, assert_nothing_left):
    with LLM(smollm2_path, max_num_seqs=1, max_model_len=256) as llm:
        messages = [{"role": "user", "content": "Name a color."}]
        params = SamplingParams(temperature=0.0, max_tokens=8)
        whole = llm.chat(messages, params, progress=False)[0]
        *_, last = llm.stream_chat(messages, params)
        assert (last.outputs[0].text, last.prompt) == (whole.outputs[0].text, whole.prompt)
        assert last.prompt_token_ids == whole.prompt_token_ids
        template = "{% for m in messages %}{{ m.content }}!{% endfor %}"
        *_, last = llm.stream_chat(messages, params, chat_template=template)
        assert last.prompt == "Name a color.!"
        assert_nothing_left(llm)
