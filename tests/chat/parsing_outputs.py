"""Outputs of models, and what is in them.

They come from the tests of vLLM's parsers and from the documents of the formats. White space around calls and reasoning
is not part of the answer here.
"""

import json

XML = (
    "<tool_call>\n<function=get_current_weather>\n<parameter=city>\nDallas\n</parameter>\n<parameter=state>\nTX\n"
    "</parameter>\n<parameter=unit>\nfahrenheit\n</parameter>\n</function>\n</tool_call>"
)
DALLAS = ("get_current_weather", {"city": "Dallas", "state": "TX", "unit": "fahrenheit"})
ORLANDO = ("get_current_weather", {"city": "Orlando", "state": "FL", "unit": "fahrenheit"})
GLM = (
    "<tool_call>get_current_weather\n    <arg_key>city</arg_key>\n    <arg_value>Dallas</arg_value>\n"
    "    <arg_key>state</arg_key>\n    <arg_value>TX</arg_value>\n    <arg_key>unit</arg_key>\n"
    "    <arg_value>fahrenheit</arg_value>\n    </tool_call>"
)
ADD = {"a": 3.5, "b": 4}
SF = {"city": "San Francisco", "state": "CA", "unit": "celsius"}
HARMONY_CALL = "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"

# Form of calls, text, reasoning, answer, calls.
OUTPUTS = [
    ("hermes", "This is some prior text that has nothing to do with tool calling.", None, ..., []),
    (
        "hermes",
        '<tool_call>\n{"name": "final_answer", "arguments": {"trigger": true}}\n</tool_call>',
        None,
        None,
        [("final_answer", {"trigger": True})],
    ),
    # The end of the text instead of the end of the block.
    (
        "hermes",
        '<tool_call>\n{"name": "final_answer", "arguments": {"trigger": true}}',
        None,
        None,
        [("final_answer", {"trigger": True})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "search", "arguments": {"q": "cats"}}</tool_call>'
        '<tool_call>{"name": "search", "arguments": {"q": "dogs"}}</tool_call>',
        None,
        None,
        [("search", {"q": "cats"}), ("search", {"q": "dogs"})],
    ),
    (
        "hermes",
        'Sure, let me check the weather.<tool_call>{"name": "get_weather", "arguments": {"city": "NYC"}}</tool_call>',
        None,
        "Sure, let me check the weather.",
        [("get_weather", {"city": "NYC"})],
    ),
    # Granite writes the arguments as a string.
    (
        "hermes",
        '<tool_call>\n{"name": "get_db_config", "arguments": "{\\"param\\": \\"max_connections\\"}"}\n</tool_call>',
        None,
        None,
        [("get_db_config", {"param": "max_connections"})],
    ),
    ("hermes", "<think>\nThis is reasoning\n</think>\n\nThis is the rest", "This is reasoning", "This is the rest", []),
    ("hermes", "<think>\n\n</think>\n\nThis is the rest", None, "This is the rest", []),
    ("qwen-xml", XML, None, None, [DALLAS]),
    (
        "qwen-xml",
        f"Sure! Let me check the weather for you.{XML}\n{XML.replace('Dallas', 'Orlando').replace('TX', 'FL')}",
        None,
        "Sure! Let me check the weather for you.",
        [DALLAS, ORLANDO],
    ),
    (
        "qwen-xml",
        "<tool_call>\n<function=calculate_area>\n<parameter=shape>\nrectangle\n</parameter>\n<parameter=dimensions>\n"
        '{"width": 10, \n "height": 20}\n</parameter>\n<parameter=precision>\n2\n</parameter>\n</function>\n'
        "</tool_call>",
        None,
        None,
        [("calculate_area", {"shape": "rectangle", "dimensions": {"width": 10, "height": 20}, "precision": 2})],
    ),
    # The end of a parameter is missing, and the tags around the function.
    ("qwen-xml", XML.replace("Dallas\n</parameter>", "Dallas"), None, None, [DALLAS]),
    ("qwen-xml", XML.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"), None, None, [DALLAS]),
    ("glm", GLM, None, None, [DALLAS]),
    (
        "glm",
        f"{GLM}\n    {GLM.replace('Dallas', 'Orlando').replace('TX', 'FL')}",
        None,
        None,
        [DALLAS, ORLANDO],
    ),
    ("glm", "<tool_call>get_current_time\n</tool_call>", None, None, [("get_current_time", {})]),
    (
        "glm",
        "<think>I want to get the weather.</think>\n\nI will help you get the weather.\n<tool_call>get_weather\n"
        "<arg_key>city</arg_key>\n<arg_value>Beijing</arg_value>\n<arg_key>date</arg_key>\n"
        "<arg_value>2025-08-01</arg_value>\n</tool_call>",
        "I want to get the weather.",
        "I will help you get the weather.",
        [("get_weather", {"city": "Beijing", "date": "2025-08-01"})],
    ),
    (
        "llama",
        '{"name": "searchTool", "parameters": {"query": "test query", "limit": 10}}',
        None,
        None,
        [("searchTool", {"query": "test query", "limit": 10})],
    ),
    (
        "llama",
        '{"name": "searchTool", "arguments": {"query": "test"}}',
        None,
        None,
        [("searchTool", {"query": "test"})],
    ),
    (
        "llama",
        '{"name": "searchTool", '
        '"parameters": {"query": "test {value} [complex]","nested": {"inner": "more {brackets}"}}}',
        None,
        None,
        [("searchTool", {"query": "test {value} [complex]", "nested": {"inner": "more {brackets}"}})],
    ),
    (
        "llama",
        '{"name": "searchTool", "parameters": {"query": "test"}} The arguments I passed were {"query": "test"}',
        None,
        'The arguments I passed were {"query": "test"}',
        [("searchTool", {"query": "test"})],
    ),
    ("llama", '{"parameters": {}}', None, ..., []),
    ("llama", '{"name": "searchTool"}', None, ..., []),
    ("llama", '{"name": "unknown", "parameters": {}}', None, ..., []),
    # Meta's model card of Llama 3.1.
    (
        "llama",
        '<|python_tag|>{"type": "function", "name": "searchTool", "parameters": {"query": "x"}}',
        None,
        None,
        [("searchTool", {"query": "x"})],
    ),
    ("mistral", '[TOOL_CALLS][{"name": "add", "arguments":{"a": 3.5, "b": 4}}]', None, None, [("add", ADD)]),
    (
        "mistral",
        '[TOOL_CALLS] [{"arguments":{"name": "John Doe"}, "name": "get_age"}]',
        None,
        None,
        [("get_age", {"name": "John Doe"})],
    ),
    (
        "mistral",
        f'Hello[TOOL_CALLS]  [ {{"name": "add", "arguments": {json.dumps(ADD)}}}, '
        f'{{"name": "get_current_weather", "arguments":{json.dumps(SF)}}} ]\nextra trailing data',
        None,
        "Hello\nextra trailing data",
        [("add", ADD), ("get_current_weather", SF)],
    ),
    (
        "mistral",
        '[TOOL_CALLS]add{"a": 3.5, "b": 4}[TOOL_CALLS]multiply{"a": 3, "b": 6}',
        None,
        None,
        [("add", ADD), ("multiply", {"a": 3, "b": 6})],
    ),
    (
        "mistral",
        'hi{hi[TOOL_CALLS]bash[ARGS]{"command": "print(\\"hello world!\\")\\nre.compile(r\'{}\')"}',
        None,
        "hi{hi",
        [("bash", {"command": "print(\"hello world!\")\nre.compile(r'{}')"})],
    ),
    ("mistral", "[TOOL_CALLS] not json at all", None, ..., []),
    ("mistral", "[THINK]This\nThat[/THINK]This is the rest\nThat", "This\nThat", "This is the rest\nThat", []),
    (
        "gemma4",
        'Let me check the weather for you. <|tool_call>call:get_weather{location:<|"|>Paris<|"|>}<tool_call|>',
        None,
        "Let me check the weather for you.",
        [("get_weather", {"location": "Paris"})],
    ),
    (
        "gemma4",
        '<|tool_call>call:weather.get{location:<|"|>San Francisco<|"|>,unit:<|"|>celsius<|"|>}<tool_call|>'
        '<|tool_call>call:get-time{location:<|"|>London, UK<|"|>}<tool_call|>',
        None,
        None,
        [("weather.get", {"location": "San Francisco", "unit": "celsius"}), ("get-time", {"location": "London, UK"})],
    ),
    (
        "gemma4",
        "<|tool_call>call:set_status{is_active:true,count:42,score:3.14,param:null,left:108.,list:[42,true,3.14]}"
        "<tool_call|>",
        None,
        None,
        [
            (
                "set_status",
                {"is_active": True, "count": 42, "score": 3.14, "param": None, "left": 108.0, "list": [42, True, 3.14]},
            )
        ],
    ),
    (
        "gemma4",
        '<|tool_call>call:f{nested:{inner:{<|"|>3<|"|>:<|"|>new text<|"|>}},list:[[<|"|>a]b<|"|>],<|"|>t<|"|>],key:}'
        "<tool_call|>",
        None,
        None,
        [("f", {"nested": {"inner": {"3": "new text"}}, "list": [["a]b"], "t"], "key": ""})],
    ),
    ("gemma4", "<|tool_call>call:get_status{}<tool_call|>", None, None, [("get_status", {})]),
    # Ollama's issue 18307: a call in an open thinking block.
    (
        "gemma4",
        '<|channel>thought\nLet\'s go.<|tool_call>call:searchTool{query:<|"|>x<|"|>}<tool_call|><|tool_response>',
        "Let's go.",
        None,
        [("searchTool", {"query": "x"})],
    ),
    # Issue 54256 of vLLM: a call without its marker, behind a thinking block.
    (
        "gemma4",
        '<|channel>thought\nLet me inspect.\n<channel|>call:searchTool{query:<|"|>cat /work/src/entry.c<|"|>}',
        "Let me inspect.",
        None,
        [("searchTool", {"query": "cat /work/src/entry.c"})],
    ),
    ("gemma4", "<|channel>thought\nLine1\nLine2<channel|>Answer", "Line1\nLine2", "Answer", []),
    ("gemma4", "<|channel>thousand reasons<channel|>Done", "thousand reasons", "Done", []),
    ("gemma4", "<|channel>thought\n<channel|>", None, None, []),
    (
        "gemma4",
        "Before\n<|channel>This is a reasoning section<channel|>\nThis is the rest",
        "This is a reasoning section",
        "Before\n\nThis is the rest",
        [],
    ),
    # The document of the harmony format.
    (
        "harmony",
        '<|channel|>analysis<|message|>User asks: "What is 2 + 2?" Simple arithmetic. Provide answer.<|end|>'
        "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>",
        'User asks: "What is 2 + 2?" Simple arithmetic. Provide answer.',
        "2 + 2 = 4.",
        [],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Need to use function get_weather.<|end|>"
        f'{HARMONY_CALL}{{"location":"San Francisco"}}<|call|>',
        "Need to use function get_weather.",
        None,
        [("get_weather", {"location": "San Francisco"})],
    ),
    (
        "harmony",
        "<|channel|>commentary<|message|>**Action plan**:\n1. Generate an HTML file<|end|><|start|>assistant"
        '<|channel|>commentary to=functions.generate_file<|constrain|>json<|message|>{"path": "index.html"}<|call|>',
        None,
        "**Action plan**:\n1. Generate an HTML file",
        [("generate_file", {"path": "index.html"})],
    ),
    # The recipient in the role, on the analysis channel, and no arguments.
    (
        "harmony",
        ' to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{"city":"Berlin"}<|call|>',
        None,
        None,
        [("get_weather", {"city": "Berlin"})],
    ),
    (
        "harmony",
        '<|channel|>analysis to=functions.ffgrep code<|message|>\n{"path":"","pattern":"x"}<|call|>',
        None,
        None,
        [("ffgrep", {"path": "", "pattern": "x"})],
    ),
    ("harmony", HARMONY_CALL.removeprefix("<|start|>assistant"), None, None, [("get_weather", {})]),
]
