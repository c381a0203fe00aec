"""A router on a real ZeroMQ socket knows what prefix caches hold, and so what a prompt will find there."""

import os
import random
import re
import signal
import socket
import threading
import time

import pytest
from kv_router import AllBlocksCleared, BlockRemoved, BlockStored, Router
from processes import children
from rocmforge import LLM, EngineDeadError, InvalidRequestError, SamplingParams
from rocmforge.kv_events import KvEventPublisher, wire_events
from rocmforge.server import ModelSpec, ServerConfig, create_app
from server_process import serving

ONE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
BLOCK = 16
SMALL = {"max_model_len": 128, "max_num_seqs": 2, "num_threads": 1, "device": "cpu", "progress": False}


@pytest.fixture
def endpoints(tmp_path):
    return f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


@pytest.fixture
def small(model):
    """An engine with room for a few prompts only."""
    with LLM(model, **SMALL) as engine:
        yield engine


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("rocmforge-kv")] == []


def prompts(count):
    """Prompts of which many begin alike, with their salts."""
    rng = random.Random(7)
    beginnings = [[rng.randrange(3, 200) for _ in range(64)] for _ in range(3)]
    for _ in range(count):
        begun = rng.choice(beginnings)[: rng.randrange(1, 65)]
        yield begun + [rng.randrange(3, 200) for _ in range(rng.randrange(1, 40))], rng.choice([None, None, "ours"])


def generate(engine, token_ids, salt=None):
    """The number of tokens that a prompt found in the prefix cache."""
    (output,) = engine.generate({"prompt_token_ids": token_ids}, ONE, progress=False, cache_salt=salt)
    return output.metrics.num_cached_tokens


def catch_up(router, cache, ask, number):
    """Reads all that came so far: the events of a prompt that nobody else gives come last."""
    last = [200 + number // 50, *[3 + number % 50] * BLOCK]
    ask(last)
    router.until(lambda: cache.hits(last, BLOCK) == BLOCK)


@pytest.mark.parametrize("isolate", [False, True])
def test_a_router_knows_what_is_cached(model, isolate, endpoints, assert_nothing_left):
    with (
        LLM(model, isolate=isolate, **SMALL) as engine,
        KvEventPublisher(*endpoints) as publisher,
        Router(*endpoints) as router,
    ):
        publisher.add(engine, "kv@pod@model")
        cache, hits = router.caches["kv@pod@model"], 0
        for number, (token_ids, salt) in enumerate(prompts(60)):
            catch_up(router, cache, lambda prompt: generate(engine, prompt), number)
            assert len(cache.blocks) == engine.block_map()["hashed"].sum()
            expected = cache.hits(token_ids, BLOCK, salt)
            assert generate(engine, token_ids, salt) == expected
            hits += expected
        assert hits > 0
        assert engine.stats().prefix_cache_evictions > 0
        assert isinstance(cache.events[0], AllBlocksCleared)
        assert {type(event) for event in cache.events[1:]} == {BlockStored, BlockRemoved}
        assert engine.reset_prefix_cache()
        router.until(lambda: not cache.blocks)
        assert isinstance(cache.events[-1], AllBlocksCleared)
        token_ids = list(range(3, 70))
        generate(engine, token_ids)
        router.until(lambda: cache.hits(token_ids, BLOCK) == 64)
        assert cache.hits(token_ids, BLOCK, "ours") == 0
        assert router.num_live > 0
        assert list(router.caches) == ["kv@pod@model"]
        publisher.close()
        router.until(lambda: not cache.blocks)
        # The engine goes on, and what it caches now concerns nobody.
        assert generate(engine, token_ids) == 64
        assert engine.take_kv_events() == []
        assert_nothing_left(engine)


def test_groups_of_layers_are_told_apart(tiny_model, endpoints):
    with (
        LLM(tiny_model("arch/gemma3"), num_threads=1, progress=False) as engine,
        KvEventPublisher(*endpoints) as publisher,
        Router(*endpoints) as router,
    ):
        publisher.add(engine)
        cache = router.caches[""]
        generate(engine, list(range(3, 3 + 5 * BLOCK)))
        router.until(lambda: len(cache.blocks) == engine.block_map()["hashed"].sum() > 0)
        kinds = {event.group_idx: event.kv_cache_spec_kind for event in cache.events[1:]}
        assert sorted(kinds) == [0, 1]
        assert set(kinds.values()) == {"full_attention", "sliding_window"}
        # The blocks of a prompt are one event for each group.
        assert [len(event.block_hashes) for event in cache.events[1:]] == [5, 5]


def test_the_last_batches_can_be_had_again(small, endpoints):
    with KvEventPublisher(*endpoints, buffer_steps=3) as publisher, Router(*endpoints) as router:
        publisher.add(small)
        cache = router.caches[""]
        for number in range(5):
            catch_up(router, cache, lambda prompt: generate(small, prompt), number)
        assert router.next >= 5
        kept = [number for _, number, _ in router.replay(0)]
        assert kept == list(range(router.next - 3, router.next))
        assert [number for _, number, _ in router.replay(router.next - 1)] == kept[-1:]
        # A request that is none is not answered, and the next one is.
        router.replays.send_multipart((b"", b"what?"))
        assert len(router.replay(0)) == 3


def test_who_reads_too_late_is_told_everything_anew(small):
    small.record_kv_events(2)
    for first in range(10, 15):
        generate(small, [first] * 20)
    cleared, *stored = wire_events(small.take_kv_events(), BLOCK)
    assert cleared == {"type": "AllBlocksCleared"}
    assert sorted(event["token_ids"][0] for event in stored) == list(range(10, 15))
    assert small.take_kv_events() == []


def test_a_process_that_dies_is_forgotten_and_the_next_one_followed(model, endpoints, assert_nothing_left):
    others = children(os.getpid())
    with (
        LLM(model, isolate=True, **SMALL) as engine,
        KvEventPublisher(*endpoints) as publisher,
        Router(*endpoints) as router,
    ):
        publisher.add(engine)
        cache, token_ids = router.caches[""], list(range(3, 70))
        generate(engine, token_ids)
        router.until(lambda: cache.hits(token_ids, BLOCK) == 64)
        [child] = children(os.getpid()) - others
        os.kill(child, signal.SIGKILL)
        router.until(lambda: not cache.blocks)
        deadline = time.monotonic() + 30
        while engine.is_restarting or not engine.restarts["kill"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert generate(engine, token_ids) == 0
        router.until(lambda: cache.hits(token_ids, BLOCK) == 64)
        assert len(cache.blocks) == engine.block_map()["hashed"].sum()
        assert sum(isinstance(event, AllBlocksCleared) for event in cache.events) >= 2
        assert_nothing_left(engine)


def ask(server, token_ids, model=None):
    """The number of tokens that a prompt found in the prefix cache of a server's model."""
    body = {"prompt": token_ids, "max_tokens": 1, **({} if model is None else {"model": model})}
    usage = server.client.post("/v1/completions", json=body).raise_for_status().json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_a_server_publishes_under_a_topic_for_each_model(model, tiny_model, tmp_path, endpoints):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").symlink_to(model)
    (tmp_path / "models" / "b.gguf").symlink_to(tiny_model("quant_models/Q6_K"))
    events, replay = endpoints
    flags = ["--kv-events-endpoint", events, "--kv-events-replay-endpoint", replay]
    flags += ["--kv-events-topic", "kv@pod@{model}", "--num-threads", 1, "--max-model-len", 256]
    prompt, other = list(range(3, 60)), list(range(100, 175))
    with serving(tmp_path, tmp_path / "models", *flags) as server, Router(events, replay) as router:
        a, b = router.caches["kv@pod@a"], router.caches["kv@pod@b"]
        assert (ask(server, prompt, "a"), ask(server, other, "b")) == (0, 0)
        router.until(lambda: a.hits(prompt, BLOCK) == 48 and b.hits(other, BLOCK) == 64)
        assert (ask(server, prompt, "a"), ask(server, other, "b")) == (48, 64)
        for name, cache in (("a", a), ("b", b)):
            hashed = server.client.get("/v1/engine/blocks", params={"model": name}).json()["hashed"]
            assert len(cache.blocks) == sum(hashed)
        server.client.post("/models/unload", json={"model": "a"}).raise_for_status()
        router.until(lambda: not a.blocks)
        assert b.hits(other, BLOCK) == 64
        # Loaded anew it has the topic that it had, and the numbers go on.
        assert ask(server, prompt, "a") == 0
        router.until(lambda: a.hits(prompt, BLOCK) == 48)
        assert len(router.caches) == 2


def test_a_server_publishes_what_a_process_of_its_own_caches(model, tmp_path, endpoints):
    events, replay = endpoints
    flags = ["--kv-events-endpoint", events, "--kv-events-replay-endpoint", replay, "--isolate", "--device", "cpu"]
    prompt = list(range(3, 60))
    with serving(tmp_path, model, "--num-threads", 1, *flags) as server, Router(events, replay) as router:
        cache = router.caches[""]
        ask(server, prompt)
        router.until(lambda: cache.hits(prompt, BLOCK) == 48)
        assert ask(server, prompt) == 48
        os.kill(int(re.findall(r"the engine runs in process (\d+)", server.log())[-1]), signal.SIGKILL)
        router.until(lambda: not cache.blocks)
        # The end of the server is the end of its blocks.
        deadline = time.monotonic() + 30
        while server.client.get("/health").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        ask(server, prompt)
        router.until(lambda: cache.hits(prompt, BLOCK) == 48)
        server.process.send_signal(signal.SIGTERM)
        router.until(lambda: not cache.blocks)
        assert server.process.wait(30) == 0, server.log()


def test_what_cannot_be_published_is_said(small, model, endpoints):
    with pytest.raises(InvalidRequestError, match="kv_events_endpoint: got 'nowhere'"):
        KvEventPublisher("nowhere")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidRequestError, match="kv_events_replay_endpoint"):
            KvEventPublisher(endpoints[0], address)
    with KvEventPublisher(*endpoints) as publisher:
        generate(small, [5] * 20)
        with pytest.raises(InvalidRequestError, match="reset_prefix_cache"):
            publisher.add(small)
        with (
            LLM(model, enable_prefix_caching=False, num_threads=1, progress=False) as without,
            pytest.raises(InvalidRequestError, match="enable_prefix_caching"),
        ):
            publisher.add(without)
        with LLM(model, **SMALL) as closed:
            pass
        with pytest.raises(EngineDeadError):
            publisher.add(closed)
    for setting in ({"kv_events_replay_endpoint": endpoints[1]}, {"kv_events_topic": "kv"}):
        with pytest.raises(InvalidRequestError, match="kv_events_endpoint"):
            ServerConfig(**setting)


def test_a_server_that_cannot_publish_does_not_begin(model, endpoints):
    config = ServerConfig(kv_events_endpoint=endpoints[0], kv_events_topic="kv@pod@model")
    specs = [ModelSpec(path=model, names=(name,)) for name in ("a", "b")]
    with pytest.raises(InvalidRequestError, match=re.escape("kv@POD@{model}")):
        create_app(specs, config)
    uncached = ModelSpec(path=model, names=("a",), settings={"enable_prefix_caching": False})
    with pytest.raises(InvalidRequestError, match="kv_events_endpoint, enable_prefix_caching"):
        create_app([uncached], config)
