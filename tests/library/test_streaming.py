"""`LLM.stream` and `LLM.stream_chat`: outputs as they come, without an event loop."""

import itertools

import pytest
from rocmforge import LLM, EngineDeadError, InvalidRequestError, SamplingParams

LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, output_kind="delta")
# More work than an engine finishes before a loop that is left after its first output gets to say so: the engine runs on
# while Python does, and a quiet machine ends one request of this tiny model within milliseconds.
MANY = ["ab"] * 256


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


def test_leaving_the_loop_ends_its_requests(llm, assert_nothing_left):
    """Running requests end, and those that wait for a place."""
    before = llm.stats().num_finished
    for _ in llm.stream(MANY, LONG):
        break
    assert_nothing_left(llm)
    between = llm.stats().num_finished
    stream = llm.stream(MANY, LONG)
    next(stream)
    stream.close()
    assert_nothing_left(llm)
    after = llm.stats().num_finished
    for earlier, later in itertools.pairwise([before, between, after]):
        ended = {reason: later[reason] - earlier[reason] for reason in later}
        assert sum(ended.values()) == ended["abort"] + ended["length"] <= len(MANY)
        assert ended["abort"] > 4


def test_several_streams_at_once(llm, assert_nothing_left):
    alone = [list(llm.stream(prompt, LONG)) for prompt in ("ab", "cd")]
    streams = [llm.stream(prompt, LONG) for prompt in ("ab", "cd")]
    texts = ["", ""]
    for pair in itertools.zip_longest(*streams):
        for index, output in enumerate(pair):
            texts[index] += "" if output is None else output.outputs[0].text
    assert texts == ["".join(output.outputs[0].text for output in outputs) for outputs in alone]
    assert_nothing_left(llm)


def test_several_prompts_come_together_and_equal_what_generate_returns(llm, assert_nothing_left):
    prompts = ["ab", [5, 6, 7], "cd", "ab"]
    params = [SamplingParams(temperature=0.0, max_tokens=8 + 4 * i, ignore_eos=True, n=1 + i % 2) for i in range(4)]
    whole = llm.generate(prompts, params, progress=False)
    assert [output.index for output in whole] == [0, 1, 2, 3]
    texts = [[""] * one.n for one in params]
    finished = []
    for output in llm.stream(prompts, [one.replace(output_kind="delta") for one in params]):
        for part in output.outputs:
            texts[output.index][part.index] += part.text
        finished += [output.index] if output.finished else []
    assert texts == [[part.text for part in output.outputs] for output in whole]
    assert sorted(finished) == [0, 1, 2, 3]
    last = {output.index: output for output in llm.stream(prompts, params)}
    assert [last[i].outputs for i in range(4)] == [output.outputs for output in whole]
    assert [last[i].prompt for i in range(4)] == ["ab", None, "cd", "ab"]
    assert_nothing_left(llm)


def test_more_prompts_than_the_queue_takes(tiny_model, assert_nothing_left):
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, output_kind="final_only")
    with LLM(tiny_model("quant_models/Q4_0"), max_num_seqs=1, max_queue_size=2) as llm:
        outputs = list(llm.stream(["ab"] * 9, params))
        assert sorted(output.index for output in outputs) == list(range(9))
        assert len({output.outputs[0].text for output in outputs}) == 1
        assert_nothing_left(llm)


def test_one_of_several_that_cannot_be_served_is_named(llm, assert_nothing_left):
    """No other prompt of the call runs."""
    prompts = llm.stats().prompt_tokens
    with pytest.raises(InvalidRequestError, match=r"prompt 1: .*token id"):
        next(llm.stream(["ab", [1, 2, 10**6]]))
    with pytest.raises(InvalidRequestError, match="got 1 for 2 prompts"):
        llm.stream(["ab", "cd"], [LONG])
    assert llm.stats().prompt_tokens == prompts
    assert_nothing_left(llm)


def test_closing_the_engine_ends_a_stream(tiny_model):
    with LLM(tiny_model("quant_models/Q4_0"), max_num_seqs=1) as llm:
        stream = llm.stream(MANY, LONG)
        first = next(stream)
        llm.close()
        last = {output.index: output.outputs[0].finish_reason for output in itertools.chain([first], stream)}
        assert set(last.values()) <= {"abort", "length"}
        assert last[len(MANY) - 1] == "abort"
        with pytest.raises(EngineDeadError):
            next(llm.stream("ab", LONG))


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
        both = [messages, [{"role": "user", "content": "Name an animal."}]]
        answers = [output.outputs[0].text for output in llm.chat(both, params, progress=False)]
        last_of = {output.index: output.outputs[0].text for output in llm.stream_chat(both, params)}
        assert [last_of[0], last_of[1]] == answers
        with pytest.raises(TypeError, match="'templat'"):
            llm.stream_chat(messages, params, templat="x")
        assert_nothing_left(llm)
