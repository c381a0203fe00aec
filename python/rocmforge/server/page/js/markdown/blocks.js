// Parses a text into blocks: paragraphs, headings, lists, quotes, code, tables, formulas. The rules are CommonMark's
// and, for tables and tasks, GitHub's. HTML stays text. A block that is not closed yet goes to the end, so that an
// answer looks right while it comes.
//
// The result is a list of blocks: {type: "paragraph" | "heading", text, level}, {type: "code", text, language},
// {type: "math", tex}, {type: "rule"}, {type: "quote", blocks}, {type: "list", ordered, start, tight, items: [blocks]}
// and {type: "table", head: [text], align: [name], rows: [[text]]}. Each has its `source`.

// Quotes and lists that lie deeper in each other are text: a text of nothing but marks may not exhaust the stack.
const MAX_DEPTH = 24;

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?![^ \t])/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?! )|( ) *(?=\S)|(?=\s*$))/;
const INDENTED = /^ {4}/;
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/;
const DELIMITERS = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?$/;
const MATH = { "$$": "$$", "\\[": "\\]" };

/** Parses a text. */
export function parseBlocks(text) {
  return blocksOf(text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"), 0);
}

function blocksOf(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    blocks.push({ ...block, source: lines.slice(at, next).join("\n") });
    at = next;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const heading = HEADING.exec(line);
  if (INDENTED.test(line)) return indentedCode(lines, at);
  if (FENCE.test(line)) return fencedCode(lines, at);
  if (heading) return [{ type: "heading", level: heading[1].length, text: headingText(line, heading[0]) }, at + 1];
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (opensMath(line)) return mathAt(lines, at);
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quoteAt(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return listAt(lines, at, depth);
  if (isTable(lines, at)) return tableAt(lines, at);
  return paragraphAt(lines, at);
}

/** The text of a heading, without the marks behind it. */
function headingText(line, marks) {
  const text = line.slice(marks.length).trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  return end === 0 || /[ \t]/.test(text[end - 1]) ? text.slice(0, end).trimEnd() : text;
}

function isBlank(line) {
  return line.trim() === "";
}

/** Whether a line ends the paragraph before it. */
function interrupts(line) {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || opensMath(line)) return true;
  const item = ITEM.exec(line);
  // A number in a sentence that was broken there begins no list, and neither does an empty item.
  return item !== null && !isBlank(line.slice(item[0].length)) && (!/\d/.test(item[2]) || /^1[.)]$/.test(item[2]));
}

function indentedCode(lines, at) {
  let end = at;
  while (end < lines.length && (INDENTED.test(lines[end]) || isBlank(lines[end]))) end += 1;
  while (isBlank(lines[end - 1])) end -= 1;
  const text = lines.slice(at, end).map((line) => line.slice(4)).join("\n");
  return [{ type: "code", language: "", text }, end];
}

function fencedCode(lines, at) {
  const [, fence, info] = FENCE.exec(lines[at]);
  const indent = lines[at].search(/\S/);
  const close = new RegExp(`^ {0,3}${fence[0] === "`" ? "`" : "~"}{${fence.length},}[ ]*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  const strip = new RegExp(`^ {0,${indent}}`);
  const text = lines.slice(at + 1, end).map((line) => line.replace(strip, "")).join("\n");
  return [{ type: "code", language: info.trim().split(/\s/)[0], text }, end + 1];
}

/** Whether a formula begins in this line and takes it whole. */
function opensMath(line) {
  const mark = line.trim().slice(0, 2);
  if (!(mark in MATH)) return false;
  const rest = line.trim().slice(2);
  const end = rest.indexOf(MATH[mark]);
  return end < 0 || isBlank(rest.slice(end + 2));
}

function mathAt(lines, at) {
  const close = MATH[lines[at].trim().slice(0, 2)];
  const tex = [];
  for (let end = at; end < lines.length; end += 1) {
    const line = end === at ? lines[at].trim().slice(2) : lines[end];
    const closes = line.indexOf(close);
    if (closes >= 0) return [{ type: "math", tex: [...tex, line.slice(0, closes)].join("\n").trim() }, end + 1];
    tex.push(line);
  }
  return [{ type: "math", tex: tex.join("\n").trim() }, lines.length];
}

function quoteAt(lines, at, depth) {
  const inside = new Inside();
  let end = at;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (QUOTE.test(line)) inside.push(line.replace(QUOTE, ""));
    // A paragraph goes on without the mark.
    else if (isBlank(line) || interrupts(line) || !inside.endsInParagraph()) break;
    else inside.push(line.trimStart());
  }
  return [{ type: "quote", blocks: blocksOf(inside.lines, depth + 1) }, end];
}

/** The lines inside of a quote or of an item. */
class Inside {
  constructor() {
    this.lines = [];
    this.inCode = false;
  }

  push(line) {
    this.lines.push(line);
    if (FENCE.test(line)) this.inCode = !this.inCode;
  }

  endsInParagraph() {
    const last = this.lines.at(-1);
    if (last === undefined || isBlank(last) || HEADING.test(last) || RULE.test(last)) return false;
    return !INDENTED.test(last) && !this.inCode;
  }
}

function listAt(lines, at, depth) {
  const first = ITEM.exec(lines[at])[2];
  const kind = first.at(-1);
  const items = [];
  let tight = true;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (item === null || item[2].at(-1) !== kind || RULE.test(lines[end])) break;
    const [inside, next] = itemLines(lines, end, item);
    const blocks = blocksOf(inside, depth + 1);
    items.push(blocks);
    // A blank line between the blocks of an item, or between items, makes room between all of them.
    if (blocks.length > 1 && hasGap(inside, blocks)) tight = false;
    end = next;
    let after = end;
    while (after < lines.length && isBlank(lines[after])) after += 1;
    if (after === end) continue;
    const other = after < lines.length ? ITEM.exec(lines[after]) : null;
    if (other === null || other[2].at(-1) !== kind || RULE.test(lines[after])) break;
    tight = false;
    end = after;
  }
  const ordered = /\d/.test(first);
  return [{ type: "list", ordered, start: ordered ? Number.parseInt(first, 10) : 1, tight, items }, end];
}

/** The lines of an item without its mark and its indent, and where they end. */
function itemLines(lines, at, item) {
  const width = item[1].length + item[2].length + (item[3] ?? " ").length;
  const made = new Inside();
  const inside = made.lines;
  made.push(lines[at].slice(Math.min(width, item[0].length)));
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (isBlank(line)) {
      // An item that begins with a blank line has no second one.
      if (inside.length === 1 && isBlank(inside[0])) break;
      made.push("");
    } else if (line.search(/\S/) >= width) {
      made.push(line.slice(width));
    } else if (isBlank(inside.at(-1)) || interrupts(line) || ITEM.test(line) || !made.endsInParagraph()) {
      break;
    } else {
      made.push(line.trimStart());
    }
  }
  while (inside.length > 1 && isBlank(inside.at(-1))) {
    inside.pop();
    end -= 1;
  }
  return [inside, end];
}

function hasGap(lines, blocks) {
  // Blank lines inside of a block are in its source; the others are between blocks.
  const inBlocks = blocks.flatMap((block) => block.source.split("\n")).filter(isBlank).length;
  return lines.filter(isBlank).length > inBlocks + (isBlank(lines[0]) ? 1 : 0);
}

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || INDENTED.test(lines[at + 1])) return false;
  if (!DELIMITERS.test(lines[at + 1].trim())) return false;
  return cells(lines[at]).length === cells(lines[at + 1]).length;
}

function tableAt(lines, at) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : left ? "left" : "";
  });
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && !isBlank(lines[end]) && !interrupts(lines[end]); end += 1) {
    const row = cells(lines[end]);
    rows.push(head.map((_, column) => row[column] ?? ""));
  }
  return [{ type: "table", head, align, rows }, end];
}

/** The cells of a row. A bar behind a backslash is a character, in code and in formulas too. */
function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return row.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function paragraphAt(lines, at) {
  let end = at + 1;
  for (; end < lines.length && !isBlank(lines[end]); end += 1) {
    const underline = UNDERLINE.exec(lines[end]);
    if (underline) {
      const level = underline[1][0] === "=" ? 1 : 2;
      return [{ type: "heading", level, text: textOf(lines.slice(at, end)) }, end + 1];
    }
    if (interrupts(lines[end]) || isTable(lines, end)) break;
  }
  return [{ type: "paragraph", text: textOf(lines.slice(at, end)) }, end];
}

/** Leading spaces say nothing; two at the end of a line break it. */
function textOf(lines) {
  return lines.map((line) => line.trimStart()).join("\n").trimEnd();
}
