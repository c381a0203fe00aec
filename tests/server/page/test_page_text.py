"""Markdown and formulas of the page, against libraries that do the same: markdown-it-py and latex2mathml."""

import random
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import latex2mathml.converter
import pytest
from markdown_cases import CASES
from markdown_it import MarkdownIt
from page_browser import opened

pytest_plugins = ("page_fixtures",)

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
BLOCKS = {"ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "p", "pre", "hr"}
BLOCKS |= {"root", *(f"h{level}" for level in range(1, 7))}

# Makes trees of texts: a text, or [name, address, children]. What the page puts around code and tables is left out.
TREES = """async (texts) => {
  const { Markdown } = await import("/page/js/markdown/render.js");
  const tree = (node) => node.nodeType === 3 ? node.data
    : [node.localName, node.getAttribute("href"), [...node.childNodes].map(tree)];
  return texts.map((text) => {
    const root = document.createElement("div");
    new Markdown(root).update(text);
    for (const box of root.querySelectorAll("input")) box.replaceWith(box.checked ? "[x]" : "[ ]");
    // Colours are not compared here.
    for (const code of root.querySelectorAll(".code code")) code.replaceChildren(code.textContent);
    for (const code of root.querySelectorAll(".code")) code.replaceWith(code.querySelector("pre"));
    for (const table of root.querySelectorAll(".table")) table.replaceWith(table.firstChild);
    for (const heading of root.querySelectorAll("[data-level]")) {
      const same = document.createElement("h" + heading.dataset.level);
      same.append(...heading.childNodes);
      heading.replaceWith(same);
    }
    return [...root.childNodes].map(tree);
  });
}"""
MATH = """async (formulas) => {
  const { mathElement } = await import("/page/js/math/render.js");
  return formulas.map((tex) => new XMLSerializer().serializeToString(mathElement(tex, true)));
}"""

FORMULAS = r"""
x^2 + y^2 = z^2
\frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
\sum_{i=1}^{n} i = \frac{n(n+1)}{2}
\int_0^\infty e^{-x^2} \, dx = \frac{\sqrt{\pi}}{2}
e^{i\pi} + 1 = 0
\sqrt[3]{x+1}
\left( \frac{a}{b} \right)^n
\begin{pmatrix} a & b \\ c & d \end{pmatrix}
\begin{bmatrix} 1 & 0 \\ 0 & 1 \end{bmatrix}
f(x) = \begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases}
\mathbb{R}^n \subseteq \mathbb{C}
\hat{x} + \bar{y} + \vec{v} + \dot{a}
\alpha \beta \gamma \Delta \Omega
a_{ij} b_i^2
f'(x) g''(x)
\binom{n}{k}
\mathbf{A}\mathbf{x} = \mathbf{b}
\nabla \times \mathbf{E} = -\frac{\partial \mathbf{B}}{\partial t}
P(A|B) = \frac{P(B|A)P(A)}{P(B)}
x \in \{1, 2, 3\}
\|v\| \leq \infty
\prod_{k=1}^{n} k = n!
O(n \log n)
3.14 \times 10^{-5}
\mathcal{L}(\theta)
A \Rightarrow B \iff C
\forall \epsilon > 0 \exists \delta
\langle u, v \rangle
\lfloor x \rfloor
a \times b \neq c
\text{if } x
\frac12
""".strip().splitlines()


class Tree(HTMLParser):
    """The tree of an HTML text."""

    def __init__(self, html):
        super().__init__()
        self.open = [["root", None, []]]
        self.root = self.open[0]
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        node = ["del" if tag == "s" else tag, dict(attrs).get("href"), []]
        self.open[-1][2].append(node)
        if tag not in ("br", "hr"):
            self.open.append(node)

    def handle_endtag(self, tag):
        if tag not in ("br", "hr"):
            self.open.pop()

    def handle_data(self, data):
        self.open[-1][2].append(data)


def normal(nodes, parent="root"):
    """A tree without the spaces at the borders of blocks, which no browser shows."""
    joined = []
    for node in nodes:
        if isinstance(node, str) and joined and isinstance(joined[-1], str):
            joined[-1] += node
        else:
            joined.append(node if isinstance(node, str) else [node[0], node[1], normal(node[2], node[0])])
    if parent in ("pre", "code"):
        return [node.rstrip("\n") if isinstance(node, str) else node for node in joined]
    borders = [None, *joined, None]
    result = []
    for before, node, after in zip(borders, joined, borders[2:], strict=False):
        text = node
        if isinstance(node, str) and parent in BLOCKS:
            text = text.lstrip("\n ") if before is None or before[0] in BLOCKS | {"br"} else text
            text = text.rstrip("\n ") if after is None or after[0] in BLOCKS | {"br"} else text
        if text != "":
            result.append(text)
    return result


@pytest.fixture(scope="module")
def text_page(chromium, server):
    """A page whose modules the tests call."""
    with opened(chromium, server.base_url) as page:
        yield page


def test_markdown_is_that_of_markdown_it(text_page):
    trees = text_page.evaluate(TREES, CASES)
    for text, tree in zip(CASES, trees, strict=True):
        assert normal(tree) == normal(Tree(MARKDOWN.render(text)).root[2]), text


def test_markdown_that_grows(text_page):
    """A text that comes in pieces looks at its end as if it had come at once, and blocks that are done are kept."""
    text = "\n\n".join(CASES[:20]) + "\n\n$$\nx^2\n$$\n\nLast."
    pieces = [text[:end] for end in range(0, len(text), 7)] + [text]
    same, kept = text_page.evaluate(
        """async (pieces) => {
          const { Markdown } = await import("/page/js/markdown/render.js");
          const [grown, whole] = [document.createElement("div"), document.createElement("div")];
          const markdown = new Markdown(grown);
          markdown.update(pieces[40]);
          const first = grown.firstChild;
          for (const piece of pieces.slice(40)) markdown.update(piece);
          new Markdown(whole).update(pieces.at(-1));
          return [grown.isEqualNode(whole), grown.firstChild === first];
        }""",
        pieces,
    )
    assert same
    assert kept


TASKS = {
    "- [ ] open\n- [x] *done*\n- [X] done": [("To do", False), ("Done", True), ("Done", True)],
    "1. [x] numbered\n\n2. [ ] with room": [("Done", True), ("To do", False)],
    "- [ ] a\n  - [x] b": [("To do", False), ("Done", True)],
    "- [ ]\n- [y] text\n- [x]text\n- `[x]` text\n\n[x] text": [],
}


def test_tasks_have_boxes(text_page):
    """Each box tells its state in words and cannot be changed."""
    found = text_page.evaluate(
        """async (texts) => {
          const { Markdown } = await import("/page/js/markdown/render.js");
          return texts.map((text) => {
            const root = document.createElement("div");
            new Markdown(root).update(text);
            const boxes = [...root.querySelectorAll("li.task input[type=checkbox]:disabled")];
            return boxes.map((box) => [box.ariaLabel, box.checked]);
          });
        }""",
        list(TASKS),
    )
    for (text, expected), boxes in zip(TASKS.items(), found, strict=True):
        assert [tuple(box) for box in boxes] == expected, text


FOUND = {
    "costs $5 and $10": [],
    "$x$ and \\(y\\)": ["x", "y"],
    "$$\nx\n$$": ["x"],
    "\\[\nx\n\\]": ["x"],
    "text \\[x\\] text $$y$$": ["x", "y"],
    "`$x$`": [],
    "```\n$x$\n```": [],
    "$a_1 * b_2 * c$ and *em*": ["a_1 * b_2 * c"],
    "\\$x$": [],
    "| a |\n|---|\n| $x$ |": ["x"],
}


def test_formulas_are_found(text_page):
    """Prices and code are no formulas; marks of emphasis inside of formulas are none."""
    found = text_page.evaluate(
        """async (texts) => {
          const { Markdown } = await import("/page/js/markdown/render.js");
          return texts.map((text) => {
            const root = document.createElement("div");
            new Markdown(root).update(text);
            return [...root.querySelectorAll("math")].map((node) => node.getAttribute("aria-label"));
          });
        }""",
        list(FOUND),
    )
    assert dict(zip(FOUND, found, strict=True)) == FOUND


def plain(element):
    """MathML without spaces, groups and the kinds of leaves, which latex2mathml sees in other ways."""
    tag = element.tag.rpartition("}")[2]
    if tag in ("mi", "mn", "mo", "mtext"):
        return (element.text or "").strip().replace("\u2033", "\u2032" * 2)
    parts = []
    for child in element:
        name = child.tag.rpartition("}")[2]
        inside = plain(child)
        if name in ("mrow", "mstyle"):
            parts += inside[1:]
        elif name != "mspace":
            parts.append(inside)
    return ["math" if tag in ("mrow", "mstyle") else tag, *parts]


def test_formulas_are_those_of_latex2mathml(text_page):
    for tex, mathml in zip(FORMULAS, text_page.evaluate(MATH, FORMULAS), strict=True):
        assert plain(ET.fromstring(mathml)) == plain(
            ET.fromstring(latex2mathml.converter.convert(tex, display="block"))
        ), tex


def test_limits_and_unknown_formulas(text_page):
    """Limits stand below in a displayed formula; what is not known is shown as it was written."""
    limit, unknown, opened_only = text_page.evaluate(MATH, [r"\lim_{x \to 0} x", r"\unknown{x}", r"\frac{1}{"])
    assert plain(ET.fromstring(limit)) == ["math", ["munder", "lim", "x", "→", "0"], "x"]
    assert re.fullmatch(r'<code [^>]*class="tex">\\unknown\{x\}</code>', unknown)
    assert re.fullmatch(r'<code [^>]*class="tex">\\frac\{1\}\{</code>', opened_only)


def test_any_text_is_shown(text_page):
    """Texts of marks in any order, and marks without end, take little time and lose no word."""
    chance = random.Random(7)
    marks = [
        "*",
        "**",
        "_",
        "`",
        "```\n",
        "~~",
        "[",
        "](",
        ")",
        "> ",
        "- ",
        "1. ",
        "# ",
        "|",
        "\n",
        "\n\n",
        "    ",
        "$",
    ]
    marks += [
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "\\frac{",
        "}",
        "^",
        "\\left(",
        "\\begin{cases}",
        "&",
        "\\\\",
        "<b>",
        "wörd",
        "😀",
    ]
    texts = ["".join(chance.choices(marks, k=chance.randrange(1, 60))) for _ in range(1500)]
    texts += [mark * 5000 for mark in marks] + [
        "*a " * 5000 + "a*" * 5000,
        "[a](" * 5000,
        "> " * 5000 + "x",
        "`a``" * 5000,
    ]
    slowest, lost = text_page.evaluate(
        """async (texts) => {
              const { Markdown } = await import("/page/js/markdown/render.js");
              let [slowest, lost] = [0, []];
              for (const text of texts) {
                let [root, least] = [null, Infinity];
                // Other work on the machine only adds to a time.
                for (let tries = 0; tries < 5 && least > 1000; tries += 1) {
                  root = document.createElement("div");
                  const before = performance.now();
                  new Markdown(root).update(text);
                  least = Math.min(least, performance.now() - before);
                }
                slowest = Math.max(slowest, least);
                const count = (where) => where.split("wörd").length;
                if (!text.includes("](") && !text.includes("|") && !text.includes("```")
                  && count(root.textContent) !== count(text)) lost.push(text);
              }
              return [slowest, lost];
            }""",
        texts,
    )
    assert lost == []
    assert slowest < 3000
