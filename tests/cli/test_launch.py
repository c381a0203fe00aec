"""`rocmforge launch`: stand-ins of the agents read what they were given, as the agents do, and ask a real server."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from rocmforge.cli.launch import Agent, Served, agent_setup
from server_process import KEPT, serving

KEY = "secret"
# Each reads its settings in its own way, asks for a token, and tells what it found.
AGENTS = {
    "claude": """
import anthropic
client = anthropic.Anthropic(max_retries=0)
names = [os.environ[f"ANTHROPIC_DEFAULT_{tier}_MODEL"] for tier in ("OPUS", "SONNET", "HAIKU")]
model = os.environ["ANTHROPIC_MODEL"]
assert {model, os.environ["CLAUDE_CODE_SUBAGENT_MODEL"]} == set(names)
assert "ANTHROPIC_API_KEY" not in os.environ
assert os.environ["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
# The model neither thinks nor knows efforts.
assert os.environ["MAX_THINKING_TOKENS"] == "0"
assert os.environ["CLAUDE_CODE_EFFORT_LEVEL"] == "unset"
length = os.environ["CLAUDE_CODE_MAX_CONTEXT_TOKENS"]
answer = client.messages.create(model=model, max_tokens=1, messages=[{"role": "user", "content": "a"}])
told = [answer.model, int(length), sys.argv[1:]]
""",
    "codex": """
import tomllib, openai
arguments, config = sys.argv[1:], {}
while arguments[:1] == ["-c"]:
    name, _, value = arguments[1].partition("=")
    table, *keys = reversed(name.split("."))
    there = config
    for key in reversed(keys):
        there = there.setdefault(key, {})
    there[table] = tomllib.loads(f"v = {value}")["v"]
    arguments = arguments[2:]
provider = config["model_providers"][config["model_provider"]]
assert provider["wire_api"] == "responses"
client = openai.OpenAI(base_url=provider["base_url"], api_key=os.environ[provider["env_key"]], max_retries=0)
answer = client.responses.create(model=config["model"], input="a", max_output_tokens=1)
told = [answer.model, config["model_context_window"], arguments]
""",
    "opencode": """
import openai
config = json.loads(os.environ["OPENCODE_CONFIG_CONTENT"])
name, _, model = config["model"].partition("/")
provider = config["provider"][name]
key = provider["options"]["apiKey"].removeprefix("{env:").removesuffix("}")
client = openai.OpenAI(base_url=provider["options"]["baseURL"], api_key=os.environ[key], max_retries=0)
messages = [{"role": "user", "content": "a"}]
answer = client.chat.completions.create(model=model, messages=messages, max_tokens=1)
told = [answer.model, provider["models"][model]["limit"]["context"], sys.argv[1:]]
""",
}


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    arguments = ("--max-model-len", 256, "--served-model-name", "small", "--api-key", KEY, "--admin-key", "other")
    with serving(tmp_path_factory.mktemp("log"), smollm2_path, *arguments, headers={"x-api-key": "other"}) as server:
        yield server


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    for name, source in AGENTS.items():
        program = folder / name
        end = 'print(json.dumps(told))\nsys.exit(3 if "fail" in sys.argv else 0)\n'
        program.write_text(f"#!{sys.executable}\nimport json, os, sys\n{source}{end}")
        program.chmod(0o755)
    return folder


def launch(*arguments, path, **variables):
    kept = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith("ROCMFORGE_")}
    command = [sys.executable, "-m", "rocmforge", "launch", *map(str, arguments)]
    environment = kept | {"PATH": str(path), "ANTHROPIC_API_KEY": "another"} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("agent", ["claude", "codex", pytest.param("opencode", marks=pytest.mark.deep)])
def test_an_agent_uses_the_server(server, programs, agent):
    """Its requests arrive with the key and the model; its arguments and its exit code are its own."""
    run = launch(agent, "--url", f"{server.url}/", "--", "-p", "hello", path=programs, ROCMFORGE_API_KEY=KEY)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == ["small", 256, ["-p", "hello"]]
    failed = launch(agent, "--url", server.url, "fail", path=programs, ROCMFORGE_API_KEY=KEY)
    assert failed.returncode == 3


@pytest.mark.parametrize(
    "agent", ["codex", *(pytest.param(name, marks=pytest.mark.deep) for name in ("claude", "opencode"))]
)
def test_what_is_printed_is_what_would_run(server, programs, agent):
    """The line runs in a shell, the key is not in it, and no program is needed to print it."""
    shown = launch(agent, "--url", server.url, "--print", "hello", path="/nowhere", ROCMFORGE_API_KEY=KEY)
    assert shown.returncode == 0, shown.stderr
    assert KEY not in shown.stdout
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "ROCMFORGE_API_KEY": KEY}
    run = subprocess.run(shown.stdout, shell=True, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == ["small", 256, ["hello"]]
    assert agent in shlex.split(shown.stdout)


def test_a_server_for_the_agent_alone(smollm2_path, programs):
    """It begins before the agent does and ends after it."""
    run = launch("claude", "--model", smollm2_path, path=programs, ROCMFORGE_MAX_MODEL_LEN="256")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [smollm2_path.stem, 256, []]
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"serve --port 0 {smollm2_path}" not in left


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("claude", "--url", "http://127.0.0.1:9"), "no server answers there"),
        (("claude", "--model", "nothing.gguf"), "the server did not start"),
        (("claude", "--model", "a.gguf", "--print"), "leave --model out"),
    ],
)
def test_errors_say_what_to_do(programs, arguments, said):
    run = launch(*arguments, path=programs)
    assert (run.returncode, said in run.stderr) == (1, True), run.stderr
    assert "Traceback" not in run.stderr


def test_opencode_is_told_that_a_model_sees():
    """It sends images to no model of which it does not know that."""
    for sees in (True, False):
        setup = agent_setup(
            Agent.OPENCODE, "http://a", Served("small", 64, thinks=False, knows_efforts=False, sees=sees), None
        )
        config = json.loads(setup.variables["OPENCODE_CONFIG_CONTENT"])
        told = config["provider"]["rocmforge"]["models"]["small"]
        assert told.get("attachment", False) == sees
        assert ("image" in told.get("modalities", {}).get("input", ())) == sees


@pytest.mark.parametrize("agent", AGENTS)
def test_a_program_that_is_missing(agent):
    run = launch(agent, path="/nowhere")
    assert run.returncode == 1
    assert f"{agent} is not installed: npm install -g" in run.stderr


def test_a_wrong_key_and_a_wrong_model(server, programs):
    run = launch("claude", "--url", server.url, path=programs)
    assert "401" in run.stderr
    assert "give its key by ROCMFORGE_API_KEY" in run.stderr
    run = launch("claude", "--url", server.url, "--served-model", "large", path=programs, ROCMFORGE_API_KEY=KEY)
    assert "got --served-model large, expected one of those that are served: small" in run.stderr


def test_one_of_several_models_is_loaded(model, smollm2_path, programs, tmp_path):
    """Only a loaded model tells the length of its context."""
    settings = tmp_path / "models.toml"
    settings.write_text(
        f'num_threads = 1\n[models.a]\npath = "{smollm2_path}"\nmax_model_len = 128\n[models.b]\npath = "{model}"\n'
    )
    with serving(tmp_path, "--config", settings) as several:
        run = launch("claude", "--url", several.url, path=programs)
        assert "got no --served-model, expected one of those that are served: a, b" in run.stderr
        run = launch("claude", "--url", several.url, "--served-model", "a", path=programs)
        assert json.loads(run.stdout) == ["a", 128, []], run.stderr
