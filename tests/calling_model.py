"""A conversation in which the real small model thinks and calls, and the chat template by which it reads of that.

The model has not learnt to do so. The conversation shows it twice, and its most likely answer does it once more.
"""

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocmforge import LLM

TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools: {% for tool in tools %}{{ tool.function | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content is defined and enable_thinking is not false %}<think>
{{ message.reasoning_content }}
</think>
{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": SCHEMA}}]


def _called(city, number):
    call = {"id": f"call_{number}", "type": "function"}
    return [
        {"role": "user", "content": f"Weather in {city}?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": f"The user wants the weather in {city}.",
            "tool_calls": [call | {"function": {"name": "get_weather", "arguments": {"city": city}}}],
        },
        {"role": "tool", "tool_call_id": f"call_{number}", "name": "get_weather", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
    ]


MESSAGES = [*_called("Rome", 1), *_called("Oslo", 2), {"role": "user", "content": "Weather in Paris?"}]
MAX_TOKENS = 80


def openai_form() -> list[dict]:
    """The conversation as OpenAI's API has it: with arguments as text."""
    made = json.loads(json.dumps(MESSAGES))
    for message in made:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return made


def raw_text(llm: "LLM", **options) -> str:
    """Asks the model, and gives its text in its own form."""
    # The tests of LiteLLM read the template in an environment without the package.
    from rocmforge import SamplingParams  # noqa: PLC0415

    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    (output,) = llm.chat(MESSAGES, params, chat_template=TEMPLATE, **options)
    assert output.outputs[0].finish_reason == "stop"
    return output.outputs[0].text


def parts(text: str) -> tuple[str, str]:
    """The reasoning, and the JSON of the call."""
    found = re.fullmatch(r"<think>\n(.*)\n</think>\n<tool_call>\n(.*)\n</tool_call>", text, re.DOTALL)
    assert found, text
    return found[1], found[2]
