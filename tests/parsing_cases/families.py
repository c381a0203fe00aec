"""Chat templates that write calls as families of models do, reduced to what shapes a message.

The forms are those of the families' public templates and descriptions of their formats: what stands around a call,
how its name and arguments are written, how reasoning and answers are marked.
"""
# ruff: noqa: RUF001 - DeepSeek's and Hunyuan's markers have a full-width line

THINK = ("<think>", "</think>")


def chat(calls, *, content="{{ m.content or '' }}", end="<|end|>", prompt="<|assistant|>", think=THINK):
    """A template whose assistant writes calls by `calls`, a part of a template about the message `m`."""
    opened, closed = think
    return (
        "{%- if tools %}<|system|>Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}" + end + "{% endif %}"
        "{%- for m in messages %}"
        "{%- if m.role == 'assistant' %}" + prompt + "{% if m.reasoning_content %}"
        + opened + "{{ m.reasoning_content }}" + closed + "{% endif %}"
        "{% if m.tool_calls %}{% if m.content %}" + content + "{% endif %}" + calls + "{% else %}" + content
        + "{% endif %}" + end
        + "{%- else %}<|{{ m.role }}|>{{ m.content }}" + end + "{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}" + prompt + "{% endif %}"
    )  # fmt: skip


def each(written, between=""):
    """The calls of a message, each written by a part of a template about the function `f` and its call `c`."""
    separator = f"{{% if not loop.last %}}{between}{{% endif %}}" if between else ""
    return "{% for c in m.tool_calls %}{% set f = c.function %}" + written + separator + "{% endfor %}"


JSON_CALL = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
TEXT = "{{ v if v is string else v | tojson }}"


def tags(written):
    """The arguments of a call, each written by a part of a template about its key `k` and its value `v`."""
    return "{% for k, v in f.arguments.items() %}" + written + "{% endfor %}"


FAMILIES = {
    "deepseek-v3": chat(
        "<｜tool▁calls▁begin｜>"
        + each(
            "<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ f.name }}{{ '\\n```json\\n' + f.arguments + '\\n```' }}"
            "<｜tool▁call▁end｜>",
            "{{ '\\n' }}",
        )
        + "<｜tool▁calls▁end｜>",
        end="<｜end▁of▁sentence｜>",
        prompt="<｜Assistant｜>",
    ),
    "deepseek-v3.1": chat(
        "<｜tool▁calls▁begin｜>"
        + each("<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ '' + f.arguments }}<｜tool▁call▁end｜>")
        + "<｜tool▁calls▁end｜>",
        end="<｜end▁of▁sentence｜>",
        prompt="<｜Assistant｜></think>",
    ),
    "deepseek-v3.2": chat(
        "{{ '\\n\\n<｜DSML｜function_calls>' }}"
        + each(
            "{{ '\\n<｜DSML｜invoke name=\"' }}{{ f.name }}{{ '\">\\n' }}"
            + "{% for k, v in f.arguments.items() %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
            '<｜DSML｜parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
            + TEXT
            + "</｜DSML｜parameter>{% endfor %}"
            + "{{ '\\n' }}</｜DSML｜invoke>"
        )
        + "{{ '\\n' }}</｜DSML｜function_calls>",
        end="<｜end▁of▁sentence｜>",
        prompt="<｜Assistant｜></think>",
    ),
    "kimi-k2": chat(
        "<|tool_calls_section_begin|>"
        + each(
            "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
            "{{ f.arguments if f.arguments is string else f.arguments | tojson }}<|tool_call_end|>"
        )
        + "<|tool_calls_section_end|>",
        end="<|im_end|>",
        prompt="<|im_assistant|>assistant<|im_middle|>",
    ),
    "minimax-m2": chat(
        "{{ '\\n<minimax:tool_call>\\n' }}"
        + each(
            "{{ '<invoke name=\"' + f.name + '\">\\n' }}"
            + tags('<parameter name="{{ k }}">' + TEXT + "{{ '</parameter>\\n' }}")
            + "{{ '</invoke>\\n' }}"
        )
        + "</minimax:tool_call>",
        end="[e~[",
        prompt="]~b]ai\n",
    ),
    "seed-oss": chat(
        each(
            "{{ '\\n<seed:tool_call>\\n<function=' + f.name + '>\\n' }}"
            + tags("<parameter={{ k }}>" + TEXT + "{{ '</parameter>\\n' }}")
            + "{{ '</function>\\n</seed:tool_call>' }}"
        ),
        end="<seed:eos>",
        prompt="<seed:bos>assistant\n",
        think=("<seed:think>", "</seed:think>"),
    ),
    "command-a": chat(
        "<|START_ACTION|>[\n"
        + each(
            '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", '
            '"parameters": {{ f.arguments | tojson }}}',
            ",\n",
        )
        + "\n]<|END_ACTION|>",
        content="<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>",
        end="<|END_OF_TURN_TOKEN|>",
        prompt="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        think=("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    "hunyuan-a13b": chat(
        "<tool_calls>[" + each(JSON_CALL, ", ") + "]</tool_calls>",
        content="{{ '<answer>\\n' + m.content + '\\n</answer>' }}",
        end="<|eos|>",
        prompt="<|extra_0|>",
    ),
    "hunyuan-dense": chat(
        "{{ '<tool_calls>\\n' }}"
        + each("{{ '<tool_call>' + f.name + '\\n```json\\n' }}{{ f.arguments | tojson }}{{ '\\n```</tool_call>\\n' }}")
        + "</tool_calls>",
        end="<｜hy_place▁holder▁no▁2｜>",
        prompt="<｜hy_Assistant｜>",
    ),
    "ernie-4.5": chat(
        each("{{ '\\n<tool_call>\\n' }}" + JSON_CALL + "{{ '\\n</tool_call>\\n' }}"),
        content="{{ '<response>\\n' + m.content + '\\n</response>\\n' }}",
        end="<|im_end|>\n",
        prompt="<|im_start|>assistant\n",
    ),
    "phi-4-mini": chat(
        "<|tool_call|>[" + each(JSON_CALL, ", ") + "]<|/tool_call|>",
    ),
    "lfm2.5": chat(
        "<|tool_call_start|>["
        + each(
            "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}="
            "{% if v is string %}'{{ v }}'{% elif v is mapping %}{{ v | tojson }}{% else %}{{ v | string }}{% endif %}"
            "{% if not loop.last %}, {% endif %}{% endfor %})",
            ", ",
        )
        + "]<|tool_call_end|>",
        end="<|im_end|>\n",
        prompt="<|im_start|>assistant\n",
    ),
    "olmo-3": chat(
        "<function_calls>"
        + each(
            "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
            "{% if not loop.last %}, {% endif %}{% endfor %})",
            "{{ '\\n' }}",
        )
        + "</function_calls>",
        end="<|im_end|>\n",
        prompt="<|im_start|>assistant\n",
    ),
    "apertus": chat(
        "<|tools_prefix|>[" + each('{"{{ f.name }}": {{ f.arguments | tojson }}}', ", ") + "]<|tools_suffix|>",
        end="<|assistant_end|>",
        prompt="<|assistant_start|>",
    ),
    # Shapes of no family in particular.
    "nested": chat(
        "<calls>"
        + each(
            '{"type": "function", "function": {"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}}', ", "
        )
        + "</calls>",
    ),
    "reversed": chat(
        "<calls>" + each('{"arguments": {{ f.arguments | tojson }}, "name": "{{ f.name }}"}', ", ") + "</calls>",
    ),
    "functionary": chat(each("<function={{ f.name }}>{{ f.arguments | tojson }}</function>")),
    "bare-list": chat("[" + each(JSON_CALL, ", ") + "]"),
}
# Templates whose calls have no shape: ids within them, or values that are no plain text.
SHAPELESS = {
    "ids": chat("<calls>{{ m.tool_calls | tojson }}</calls>"),
    "lines": chat(each("<call>{{ f.name }}" + tags("{{ '\\n' }}{{ k }}: {{ v | tojson }}") + "</call>")),
    "none": chat("Something else."),
}
