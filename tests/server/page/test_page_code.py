"""Colours of code in the page: the tokens of each language, and their contrast."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_browser import answered, ask, opened, put_answer, set_sampling
from playwright.sync_api import expect

pytest_plugins = ("page_fixtures",)

# A language, a code, and its tokens with a kind.
CODES = {
    "python": (
        "# Adds.\n@cache\ndef add(a, b=0x1f):\n    '''One\n    line.'''\n    return f\"{a}\\\"\" if a.in_ else None",
        "comment:# Adds.|name:@cache|keyword:def|number:0x1f|string:'''One\n    line.'''|keyword:return"
        '|string:f"{a}\\""|keyword:if|keyword:else|keyword:None',
    ),
    "Rust": (
        "fn main<'a>() { let c = '\\''; println!(r#\"a \"b\"\"#, 1u32); } // end",
        "keyword:fn|name:'a|keyword:let|string:'\\''|name:println!|string:r#\"a \"b\"\"#|number:1u32|comment:// end",
    ),
    "js": (
        'const x = /a"b/g; let y = `1\n${x}`; x / 2 / y; this.default /* no\nmore */',
        'keyword:const|string:/a"b/|keyword:let|string:`1\n${x}`|number:2|keyword:this|comment:/* no\nmore */',
    ),
    "c++": ("#include <x>\nauto a = 'b';", "keyword:#include|keyword:auto|string:'b'"),
    "sh": ("echo \"$A\" $B a#b '\\' # c", "keyword:echo|string:\"$A\"|name:$B|string:'\\'|comment:# c"),
    "sql": ("select A -- b\nFROM c WHERE d = 'e'", "keyword:select|comment:-- b|keyword:FROM|keyword:WHERE|string:'e'"),
    "json": ('{"a": "b:", "c": [true, 2]}', 'name:"a"|string:"b:"|name:"c"|keyword:true|number:2'),
    "yaml": (
        "- my-key: http://a#b # c\n  d: it's",
        "name:my-key|comment:# c|name:d",
    ),
    "toml": ("[a.b]\nc-d = 'e' # f", "keyword:[a.b]|name:c-d|string:'e'|comment:# f"),
    "css": ("a { color: #fff; } /* b */", "name:color|number:#fff|comment:/* b */"),
    "html": (
        "<!-- a --><p class='b' hidden>it's</p><script>let c = 1;</script>",
        "comment:<!-- a -->|keyword:<p|name:class|string:'b'|name:hidden|keyword:>|keyword:</p|keyword:>"
        "|keyword:<script|keyword:>|keyword:let|number:1|keyword:</script|keyword:>",
    ),
    "diff": ("@@ 1 @@\n-a\n+b\n c", "keyword:@@ 1 @@\n|deleted:-a\n|inserted:+b\n"),
    "text": ("if it's 1", ""),
    "__proto__": ("if it's 1", ""),
    "": ("if it's 1", ""),
}
HIGHLIGHT = """async (codes) => {
  const { highlight } = await import("/page/js/markdown/highlight.js");
  return codes.map(([language, code]) => highlight(code, language));
}"""
# Every kind of token.
ANSWER = (
    '```python\n# Comment\ndef name():\n    return "string", 1\n```\n\n```json\n{"key": 1}\n```\n\n```diff\n-a\n+b\n```'
)


@pytest.fixture(scope="module")
def code_page(chromium, server):
    """A page whose modules the tests call."""
    with opened(chromium, server.base_url) as page:
        yield page


def test_tokens_of_languages(code_page):
    found = code_page.evaluate(HIGHLIGHT, [[language, code] for language, (code, _) in CODES.items()])
    for (language, (code, expected)), tokens in zip(CODES.items(), found, strict=True):
        assert "".join(text for _, text in tokens) == code, language
        assert "|".join(f"{kind}:{text}" for kind, text in tokens if kind) == expected, language


def test_cut_code_loses_no_character(code_page):
    """Code that is not complete yet, in its own and in every other language."""
    pieces = [
        [language, code[:end]] for language in CODES for code, _ in CODES.values() for end in range(0, len(code), 3)
    ]
    for (language, code), tokens in zip(pieces, code_page.evaluate(HIGHLIGHT, pieces), strict=True):
        assert "".join(text for _, text in tokens) == code, language


def test_code_that_grows_stays(code_page):
    """The element, its scrolled place and its first tokens remain while code is streamed."""
    kept = code_page.evaluate(
        """async () => {
          const { Markdown } = await import("/page/js/markdown/render.js");
          const root = document.createElement("div");
          document.body.append(root);
          const markdown = new Markdown(root);
          markdown.update("Code:\\n\\n```py\\nif x == '" + "a".repeat(900));
          const pre = root.querySelector("pre");
          const first = pre.querySelector("span");
          pre.scrollLeft = 40;
          markdown.update("Code:\\n\\n```py\\nif x == '" + "a".repeat(900) + "'\\nif y:\\n");
          const grown = root.querySelector("pre");
          const result = [grown === pre, grown.querySelector("span") === first, grown.scrollLeft];
          markdown.update("Code:\\n\\n```py\\nx = 1\\n```\\n\\nText.");
          const whole = document.createElement("div");
          new Markdown(whole).update("Code:\\n\\n```py\\nx = 1\\n```\\n\\nText.");
          result.push(root.isEqualNode(whole));
          root.remove();
          return result;
        }"""
    )
    assert kept == [True, True, 40, True]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_read(chromium, server, theme):
    with opened(chromium, server.base_url, color_scheme=theme) as page:
        set_sampling(page, max_tokens=1)
        ask(page, "Code")
        answered(page)
        put_answer(page, ANSWER)
        kinds = ["comment", "keyword", "string", "number", "name", "deleted", "inserted"]
        for kind in kinds:
            expect(page.locator(f".token-{kind}").first).to_be_visible()
        colours = page.evaluate(
            "kinds => kinds.map((kind) => getComputedStyle(document.querySelector(`.token-${kind}`)).color)", kinds
        )
        # Inserted lines have the colour of strings.
        assert len(set(colours)) == len(kinds) - 1
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
