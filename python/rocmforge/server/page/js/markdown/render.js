// Makes elements of a text in Markdown. A text of a model never becomes HTML: each piece of it is the text of a node.

import { el } from "../dom.js";
import { mathElement } from "../math/render.js";
import { parseBlocks } from "./blocks.js";
import { CodeView } from "./code.js";
import { parseInline } from "./inline.js";

// Emphases and links deeper in each other than this are shown as their text alone.
const MAX_DEPTH = 40;
const TASK = /^\[([ xX])\]\s+(?=\S)/;
const SAFE = new Set(["http:", "https:", "mailto:"]);

/** Shows a text that may grow: blocks that did not change since the last time stay as they are. */
export class Markdown {
  #sources = [];
  // The view of a last block that is code, else null.
  #code = null;

  /** @param {HTMLElement} parent what the blocks are put into */
  constructor(parent) {
    this.parent = parent;
  }

  /** Shows a text in place of the one before. */
  update(text) {
    const blocks = parseBlocks(text);
    const sources = blocks.map((block) => block.source);
    let same = 0;
    while (same < blocks.length && sources[same] === this.#sources[same]) same += 1;
    // Code that grows stays where it is.
    if (same === this.#sources.length - 1 && blocks[same]?.type === "code"
      && blocks[same].language === this.#code?.language) {
      this.#code.update(blocks[same].text);
      same += 1;
    }
    if (same < Math.max(blocks.length, this.#sources.length)) this.#code = null;
    while (this.parent.childNodes.length > same) this.parent.lastChild.remove();
    for (const block of blocks.slice(same)) {
      this.#code = block.type === "code" ? new CodeView(block) : null;
      this.parent.append(this.#code?.element ?? blockElement(block));
    }
    this.#sources = sources;
  }
}

function blockElement(block) {
  switch (block.type) {
    // The page and the message have the headings above these.
    case "heading": return el(`h${Math.min(6, block.level + 2)}`, { dataset: { level: block.level } },
      ...inlineNodes(block.text));
    case "code": return new CodeView(block).element;
    case "math": return el("p", { class: "formula" }, mathElement(block.tex, true));
    case "rule": return el("hr");
    case "quote": return el("blockquote", {}, ...block.blocks.map(blockElement));
    case "list": return listElement(block);
    case "table": return tableElement(block);
    default: return el("p", {}, ...inlineNodes(block.text));
  }
}

function listElement(block) {
  const items = block.items.map((blocks) => {
    const [first, ...others] = blocks;
    const task = first?.type === "paragraph" ? TASK.exec(first.text) : null;
    const shown = task === null ? blocks : [{ ...first, text: first.text.slice(task[0].length) }, ...others];
    const nodes = shown.flatMap((inner) => (
      block.tight && inner.type === "paragraph" ? inlineNodes(inner.text) : [blockElement(inner)]));
    if (task === null) return el("li", {}, ...nodes);
    const box = taskBox(task[1] !== " ");
    if (!block.tight) nodes[0].prepend(box, " ");
    return el("li", { class: "task" }, ...(block.tight ? [box, " "] : []), ...nodes);
  });
  return el(block.ordered ? "ol" : "ul", { start: block.ordered && block.start !== 1 ? block.start : null }, ...items);
}

/** The box of a task; it tells its state and cannot be changed. */
function taskBox(done) {
  return el("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "Done" : "To do" });
}

function tableElement(block) {
  const row = (texts, tag) => el("tr", {}, ...texts.map((text, column) => (
    el(tag, { class: block.align[column] || null, scope: tag === "th" ? "col" : null }, ...inlineNodes(text)))));
  const table = el("table", {}, el("thead", {}, row(block.head, "th")),
    el("tbody", {}, ...block.rows.map((texts) => row(texts, "td"))));
  return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}

function inlineNodes(text) {
  return parseInline(text).map((node) => inlineNode(node, 0));
}

function inlineNode(node, depth) {
  if (depth > MAX_DEPTH) return textOf(node);
  const children = () => node.children.map((child) => inlineNode(child, depth + 1));
  switch (node.type) {
    case "text": return node.text;
    case "code": return el("code", {}, node.text);
    case "math": return mathElement(node.tex, node.display);
    case "break": return el("br");
    case "link": return linkElement(node.href, node.title, children());
    default: return el(node.type, {}, ...children());
  }
}

/** The texts of a node, by a walk that has no depth. */
function textOf(node) {
  const texts = [];
  const waiting = [node];
  while (waiting.length > 0) {
    const next = waiting.pop();
    texts.push(next.text ?? next.tex ?? "");
    waiting.push(...(next.children ?? []).toReversed());
  }
  return texts.join("");
}

/** A link to another site; what is none is its text. */
function linkElement(href, title, children) {
  let address;
  try {
    address = new URL(href);
  } catch {
    address = null;
  }
  if (address === null || !SAFE.has(address.protocol)) {
    return el("span", { title: href ? `Not opened: ${href}` : null }, ...children);
  }
  return el("a", { href: address.href, title: title || null, target: "_blank", rel: "noopener noreferrer nofollow" },
    ...children);
}
