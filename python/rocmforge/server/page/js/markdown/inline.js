// Parses the inside of a paragraph: emphasis, code, links, formulas. The rules are CommonMark's, with `~~` and bare
// addresses as GitHub has them, and without HTML, which stays text.
//
// The result is a list of nodes: {type: "text" | "code", text}, {type: "math", tex, display}, {type: "break"},
// {type: "em" | "strong" | "del", children} and {type: "link", href, title, children}.

const ESCAPABLE = /[!"#$%&'()*+,\-./:;<=>?@[\\\]^_`{|}~]/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPACE = /\s/;
const ADDRESS = /https?:\/\/[^\s<>"'`|]+/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]*)>/y;
const NAMED = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", mdash: "—", ndash: "–", hellip: "…",
  times: "×", rarr: "→", larr: "←", le: "≤", ge: "≥", ne: "≠",
};
const ENTITY = new RegExp(`&(${Object.keys(NAMED).join("|")}|#\\d{1,7}|#[xX][\\da-fA-F]{1,6});`, "y");
// The parts of a link's target: an address in brackets or with balanced parentheses, and a title.
const BRACKETED = /<([^<>\n]*)>/y;
const BARE = /(?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*/y;
const TITLE = /"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'/y;

/** Parses a text. */
export function parseInline(text) {
  return new Inline(text).parse();
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.nodes = [];
    // Runs of `*`, `_` and `~` that may open or close an emphasis: {node, mark, count, opens, closes, whole}.
    this.runs = [];
    // Opening brackets: {at, run, image}, where `at` and `run` are the numbers of nodes and of runs before.
    this.brackets = [];
    // Those of them that are a picture's, and the number of the first that may still be a link's.
    this.images = 0;
    this.live = 0;
    // Closing marks of code and formulas that are known not to come any more.
    this.missing = new Set();
  }

  parse() {
    while (this.at < this.text.length) this.#step(this.text[this.at]);
    this.#emphasise(0);
    return merged(this.nodes);
  }

  #step(char) {
    switch (char) {
      case "\\": return this.#escape();
      case "`": return this.#code();
      case "$": return this.#dollars();
      case "*": case "_": case "~": return this.#run(char);
      case "[": return this.#open(1, false);
      case "!": return this.text[this.at + 1] === "[" ? this.#open(2, true) : this.#add(1);
      case "]": return this.#close();
      case "<": return this.#autolink();
      case "&": return this.#entity();
      case "h": return this.#address();
      case "\n": return this.#newline();
      default: return this.#plain();
    }
  }

  #push(node) {
    this.nodes.push(node);
    return node;
  }

  /** Takes `count` characters as they are. */
  #add(count, text = this.text.slice(this.at, this.at + count)) {
    this.at += count;
    return this.#push({ type: "text", text });
  }

  #plain() {
    let end = this.at + 1;
    // An address may begin with any h that does not follow a letter.
    while (end < this.text.length && !/[\\`$*_~![\]<&\n]/.test(this.text[end])
      && !(this.text[end] === "h" && !/\w/.test(this.text[end - 1]))) end += 1;
    this.#add(end - this.at);
  }

  #escape() {
    const next = this.text[this.at + 1];
    if (next === "(" || next === "[") {
      const close = next === "(" ? "\\)" : "\\]";
      const end = this.#find(close, this.at + 2);
      if (end > this.at + 2) {
        this.#push({ type: "math", tex: this.text.slice(this.at + 2, end).trim(), display: next === "[" });
        this.at = end + 2;
        return;
      }
    }
    if (next === "\n") {
      this.#push({ type: "break" });
      this.at += 2;
      this.#skipSpaces();
    } else if (next !== undefined && ESCAPABLE.test(next)) {
      this.#add(2, next);
    } else {
      this.#add(1);
    }
  }

  /** Where a mark comes next, or -1; one that is known not to come is not looked for again. */
  #find(mark, from) {
    if (this.missing.has(mark)) return -1;
    const found = this.text.indexOf(mark, from);
    if (found < 0) this.missing.add(mark);
    return found;
  }

  #code() {
    const ticks = /`+/y;
    ticks.lastIndex = this.at;
    const mark = ticks.exec(this.text)[0];
    const start = this.at + mark.length;
    for (let end = this.#find(mark, start); end >= 0; end = this.#find(mark, end)) {
      ticks.lastIndex = end;
      const { length } = ticks.exec(this.text)[0];
      if (length === mark.length) {
        let code = this.text.slice(start, end).replaceAll("\n", " ");
        if (/^ .*[^ ].* $/.test(code) || /^ [^ ] $/.test(code)) code = code.slice(1, -1);
        this.#push({ type: "code", text: code });
        this.at = end + length;
        return;
      }
      end += length;
    }
    this.missing.add(mark);
    this.#add(mark.length);
  }

  #dollars() {
    const display = this.text[this.at + 1] === "$";
    const mark = display ? "$$" : "$";
    const start = this.at + mark.length;
    for (let end = this.#find(mark, start); end > start; end = this.text.indexOf(mark, end + 1)) {
      const tex = this.text.slice(start, end);
      // Two prices in a sentence are no formula: spaces inside of the marks, or a digit behind them.
      const fits = display || !(SPACE.test(tex[0]) || SPACE.test(tex.at(-1)) || tex.at(-1) === "\\"
        || /\d/.test(this.text[end + 1] ?? ""));
      if (fits) {
        this.#push({ type: "math", tex: tex.trim(), display });
        this.at = end + mark.length;
        return;
      }
      if (tex.at(-1) !== "\\") break;
    }
    this.#add(mark.length);
  }

  #run(mark) {
    let count = 1;
    while (this.text[this.at + count] === mark) count += 1;
    const before = characterBefore(this.text, this.at);
    const after = String.fromCodePoint(this.text.codePointAt(this.at + count) ?? 32);
    const left = !SPACE.test(after) && (!PUNCTUATION.test(after) || SPACE.test(before) || PUNCTUATION.test(before));
    const right = !SPACE.test(before) && (!PUNCTUATION.test(before) || SPACE.test(after) || PUNCTUATION.test(after));
    const inWord = mark === "_";
    const opens = left && (!inWord || !right || PUNCTUATION.test(before));
    const closes = right && (!inWord || !left || PUNCTUATION.test(after));
    const node = this.#add(count);
    if ((mark !== "~" || count === 2) && (opens || closes)) {
      this.runs.push({ node, mark, count, whole: count, opens, closes });
    }
  }

  #open(length, image) {
    this.brackets.push({ at: this.nodes.length, run: this.runs.length, image });
    if (image) this.images += 1;
    this.#add(length);
  }

  #close() {
    const bracket = this.brackets.pop();
    const active = bracket !== undefined && (bracket.image || this.brackets.length >= this.live);
    this.live = Math.min(this.live, this.brackets.length);
    if (bracket?.image) this.images -= 1;
    const target = active ? linkTarget(this.text, this.at + 1) : null;
    if (target === null) {
      this.#add(1);
      return;
    }
    this.#emphasise(bracket.run);
    const children = merged(this.nodes.splice(bracket.at).slice(1));
    this.#push({ type: "link", href: target.href, title: target.title, children });
    this.at = target.end;
    // A link has no link inside of it.
    if (!bracket.image) this.live = this.brackets.length;
  }

  #autolink() {
    AUTOLINK.lastIndex = this.at;
    const match = AUTOLINK.exec(this.text);
    if (match === null) this.#add(1);
    else this.#link(match[1], match[0].length);
  }

  #address() {
    ADDRESS.lastIndex = this.at;
    // Inside of a link's text it is no link of its own.
    const inLink = this.images > 0 || this.brackets.length > this.live;
    const match = inLink || /\w/.test(this.text[this.at - 1] ?? "") ? null : ADDRESS.exec(this.text);
    if (match === null) {
      this.#plain();
      return;
    }
    const [address] = match;
    let end = address.length;
    while (/[.,:;!?*_~]/.test(address[end - 1])) end -= 1;
    // A bracket around the address is no part of it.
    let spare = count(address, /[)\]]/g) - count(address, /[([]/g);
    for (; spare > 0 && /[)\]]/.test(address[end - 1]); spare -= 1) end -= 1;
    this.#link(address.slice(0, end), end);
  }

  #link(address, length) {
    this.#push({ type: "link", href: address, title: "", children: [{ type: "text", text: address }] });
    this.at += length;
  }

  #entity() {
    ENTITY.lastIndex = this.at;
    const match = ENTITY.exec(this.text);
    if (match === null) {
      this.#add(1);
      return;
    }
    const name = match[1];
    const code = /^#x/i.test(name) ? Number.parseInt(name.slice(2), 16) : Number.parseInt(name.slice(1), 10);
    const bad = code === 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000);
    this.#add(match[0].length, name[0] !== "#" ? NAMED[name] : bad ? "\ufffd" : String.fromCodePoint(code));
  }

  #newline() {
    const last = this.nodes.at(-1);
    let spaces = 0;
    if (last?.type === "text") while (last.text[last.text.length - 1 - spaces] === " ") spaces += 1;
    if (spaces > 0) last.text = last.text.slice(0, -spaces);
    this.#push(spaces >= 2 ? { type: "break" } : { type: "text", text: "\n" });
    this.at += 1;
    this.#skipSpaces();
  }

  #skipSpaces() {
    while (this.text[this.at] === " ") this.at += 1;
  }

  /** Marks the emphases of the runs from number `bottom` on, innermost first, and forgets these runs. */
  #emphasise(bottom) {
    // Below these numbers of runs there is no opener for a closer of the kind.
    const floors = new Map();
    // Runs that may open an emphasis, the last one at the end: those between two that belong together are text.
    const openers = [];
    for (const [at, run] of this.runs.splice(bottom).entries()) {
      run.at = at;
      while (run.closes && run.count > 0) {
        const kind = `${run.mark}${run.opens}${run.whole % 3}`;
        const floor = floors.get(kind) ?? 0;
        let last = openers.length - 1;
        while (last >= 0 && openers[last].at >= floor && !matches(openers[last], run)) last -= 1;
        if (last < 0 || openers[last].at < floor) {
          floors.set(kind, at);
          break;
        }
        openers.length = last + 1;
        wrap(openers[last], run);
        if (openers[last].count === 0) openers.pop();
      }
      if (run.opens && run.count > 0) openers.push(run);
    }
  }
}

function matches(open, close) {
  if (!open.opens || open.count === 0 || open.mark !== close.mark) return false;
  // A run that could be both does not match one when their lengths are together a multiple of 3.
  if ((open.closes || close.opens) && (open.whole + close.whole) % 3 === 0) {
    return open.whole % 3 === 0 && close.whole % 3 === 0;
  }
  return true;
}

/** Marks at the nodes of two runs that an emphasis begins behind the one and ends before the other. */
function wrap(open, close) {
  const size = open.count >= 2 && close.count >= 2 ? 2 : 1;
  for (const run of [open, close]) {
    run.count -= size;
    run.node.text = run.node.text.slice(size);
  }
  (open.node.begins ??= []).push(open.mark === "~" ? "del" : size === 2 ? "strong" : "em");
  close.node.ends = (close.node.ends ?? 0) + 1;
}

/** Makes emphases as they are marked, and one text of texts that follow each other. */
function merged(nodes) {
  const outer = [];
  let joined = [];
  for (const { begins, ends, ...node } of nodes) {
    for (let count = ends ?? 0; count > 0; count -= 1) {
      const { type, before } = outer.pop();
      before.push({ type, children: joined });
      joined = before;
    }
    const last = joined.at(-1);
    if (node.type !== "text") joined.push(node);
    else if (last?.type === "text") last.text += node.text;
    else if (node.text !== "") joined.push(node);
    // The one that was found last is around the others.
    for (const type of (begins ?? []).reverse()) {
      outer.push({ type, before: joined });
      joined = [];
    }
  }
  return joined;
}

function characterBefore(text, at) {
  if (at === 0) return " ";
  const last = text[at - 1];
  return /[\udc00-\udfff]/.test(last) && at > 1 ? text.slice(at - 2, at) : last;
}

function count(text, pattern) {
  return text.match(pattern)?.length ?? 0;
}

/** Reads `(address "title")` behind a link's text; null where there is none. */
function linkTarget(text, start) {
  if (text[start] !== "(") return null;
  const begin = behindSpace(text, start + 1);
  for (const form of [BRACKETED, BARE]) {
    form.lastIndex = begin;
    const address = form.exec(text);
    if (address === null) continue;
    let at = form.lastIndex;
    TITLE.lastIndex = behindSpace(text, at);
    const title = TITLE.lastIndex > at ? TITLE.exec(text) : null;
    if (title !== null) at = TITLE.lastIndex;
    at = behindSpace(text, at);
    if (text[at] !== ")") continue;
    const plain = (part) => (part ?? "").replace(/\\([!-/:-@[-`{-~])/g, "$1");
    return { href: plain(address[1] ?? address[0]), title: plain(title?.[1] ?? title?.[2]), end: at + 1 };
  }
  return null;
}

function behindSpace(text, at) {
  while (at < text.length && SPACE.test(text[at])) at += 1;
  return at;
}

