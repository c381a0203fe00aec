// Splits code into tokens with a kind: comments, strings, numbers, keywords, names, and the lines of a diff.
//
// A token is [kind, text]; an empty kind is a text without colour. The texts together are the code. Each character is
// looked at a bounded number of times.

import { languageName, languageOf } from "./languages.js";

// Spaces between a key and the character behind it.
const MAX_GAP = 8;
const NUMBER = "(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d[\\d_]*)?(?:[eE][+-]?\\d+)?)[\\w%]*";
const WORD = "[\\p{L}_][\\p{L}\\p{M}\\p{N}_]*";
const DASHED_WORD = "-{0,2}[\\p{L}_][\\p{L}\\p{M}\\p{N}_-]*";
const TAG = /<[!?/]?[a-zA-Z][\w:.-]*/uy;
const IN_TAG = /(\/?>)|(["'])|[\p{L}_:@*#.-][\p{L}\p{N}_:@*#.-]*|\s+|[^]/uy;

const scanners = new Map();

/**
 * The tokens of a code.
 *
 * @param {string} code
 * @param {string} info the name of the language, as a fence has it
 * @returns {[string, string][]}
 */
export function highlight(code, info) {
  const tokens = new Tokens();
  scan(code, languageName(info), tokens);
  return tokens.list;
}

/** A list of tokens, in which no two without a kind follow each other. */
class Tokens {
  constructor() {
    this.list = [];
  }

  add(kind, text) {
    const last = this.list.at(-1);
    if (text === "") return;
    if (kind === "" && last?.[0] === "") last[1] += text;
    else this.list.push([kind, text]);
  }
}

function scan(code, name, tokens) {
  const language = languageOf(name);
  if (language !== null) scanCode(code, scannerOf(name, language), tokens);
  else if (name === "html") scanMarkup(code, tokens);
  else if (name === "diff") scanDiff(code, tokens);
  else tokens.add("", code);
}

/** A language with its words as a set, and one expression for whatever may begin a token. */
function scannerOf(name, language) {
  if (!scanners.has(name)) {
    const rules = language.rules.map(({ open }) => `(${open})`);
    const word = language.dashes ? DASHED_WORD : WORD;
    scanners.set(name, {
      ...language,
      words: new Set(language.words.split(" ")),
      start: new RegExp(`${[...rules, `(${NUMBER})`, `(${word})`].join("|")}|\\s+|[^]`, "muy"),
    });
  }
  return scanners.get(name);
}

function scanCode(code, language, tokens) {
  const { rules, start } = language;
  let at = 0;
  // Whether only spaces and the dashes of a list stand before this place in its line.
  let first = true;
  while (at < code.length) {
    start.lastIndex = at;
    const match = start.exec(code);
    const found = match.findIndex((group, index) => index > 0 && group !== undefined) - 1;
    let [text] = match;
    let kind = "";
    if (found >= rules.length) {
      kind = found === rules.length ? "number" : wordKind(code, at, text, language);
    } else if (found >= 0) {
      kind = rules[found].kind;
      text = code.slice(at, endOf(rules[found], code, at + text.length));
    }
    const end = at + text.length;
    if ((kind === "string" || found > rules.length) && isKey(code, end, first, language)) kind = "name";
    tokens.add(kind, text);
    if (text.includes("\n")) first = true;
    else if (text.trim() !== "" && text !== "-") first = false;
    at = end;
  }
}

function wordKind(code, at, word, { words, ignoreCase }) {
  // A member may have the name of a keyword.
  return code[at - 1] !== "." && words.has(ignoreCase ? word.toLowerCase() : word) ? "keyword" : "";
}

/** Whether what ends here is a key. */
function isKey(code, end, first, { key, keysAtLine }) {
  if (key === undefined || (keysAtLine && !first)) return false;
  let at = end;
  while (at - end < MAX_GAP && (code[at] === " " || code[at] === "\t")) at += 1;
  return code[at] === key;
}

/** Where a token ends that has begun before `from`. */
function endOf({ close, escapes, lines }, code, from) {
  if (close === null) return from;
  if (close === "") return lineEnd(code, from);
  let at = from;
  while (at < code.length) {
    if (escapes && code[at] === "\\") at += 2;
    else if (code[at] === "\n" && !lines) return at;
    else if (code.startsWith(close, at)) return at + close.length;
    else at += 1;
  }
  return code.length;
}

function lineEnd(code, from) {
  const end = code.indexOf("\n", from);
  return end < 0 ? code.length : end;
}

function scanMarkup(code, tokens) {
  let at = 0;
  while (at < code.length) {
    const next = code.indexOf("<", at);
    const begin = next < 0 ? code.length : next;
    tokens.add("", code.slice(at, begin));
    at = begin;
    if (at === code.length) return;
    TAG.lastIndex = at;
    const tag = TAG.exec(code)?.[0];
    if (code.startsWith("<!--", at)) {
      const end = code.indexOf("-->", at);
      at = end < 0 ? code.length : end + 3;
      tokens.add("comment", code.slice(begin, at));
    } else if (tag === undefined) {
      tokens.add("", "<");
      at += 1;
    } else {
      tokens.add("keyword", tag);
      at = scanTag(code, at + tag.length, tokens);
      at = scanInside(code, at, tag.toLowerCase(), tokens);
    }
  }
}

/** Takes the rest of a tag; returns where it ends. */
function scanTag(code, from, tokens) {
  let at = from;
  while (at < code.length) {
    IN_TAG.lastIndex = at;
    const [text, closes, quote] = IN_TAG.exec(code);
    at += text.length;
    if (quote !== undefined) {
      const end = code.indexOf(quote, at);
      const until = end < 0 ? code.length : end + 1;
      tokens.add("string", quote + code.slice(at, until));
      at = until;
    } else if (closes !== undefined) {
      tokens.add("keyword", text);
      return at;
    } else {
      tokens.add(/^[\p{L}_:@*#.-]/u.test(text) ? "name" : "", text);
    }
  }
  return at;
}

/** Takes the script or the style that a tag begins; returns where it ends. */
function scanInside(code, from, tag, tokens) {
  const language = { "<script": "javascript", "<style": "css" }[tag];
  if (language === undefined) return from;
  const end = code.indexOf(`</${tag.slice(1)}`, from);
  const until = end < 0 ? code.length : end;
  scan(code.slice(from, until), language, tokens);
  return until;
}

function scanDiff(code, tokens) {
  for (const line of code.split(/(?<=\n)/)) {
    const kind = line.startsWith("+") ? "inserted" : line.startsWith("-") ? "deleted"
      : line.startsWith("@@") ? "keyword" : "";
    tokens.add(kind, line);
  }
}
