// Finds conversations by words in their titles and messages.

import { el } from "../dom.js";
import { splitThinking } from "./thinking.js";

const BEFORE = 24;
const AFTER = 80;

/** The words of a query. */
export function wordsOf(query) {
  return query.trim().split(/\s+/).filter((word) => word !== "").map((word) => new RegExp(escaped(word), "giu"));
}

/**
 * The conversations that have all words, each with a message to show.
 *
 * @param {Object[]} conversations
 * @param {RegExp[]} words
 * @returns {{conversation: Object, message: Object|null, text: string}[]} `message` is the first with a word that the
 *   title has not; `text` is a piece of it
 */
export function found(conversations, words) {
  return conversations.map((conversation) => hit(conversation, words)).filter((one) => one !== null);
}

function hit(conversation, words) {
  let result = { conversation, message: null, text: "" };
  for (const word of words) {
    if (conversation.title.search(word) >= 0) continue;
    const message = conversation.messages.find((one) => shownText(one).search(word) >= 0);
    if (message === undefined) return null;
    if (result.message === null) result = { conversation, message, text: piece(shownText(message), word) };
  }
  return result;
}

/** A text in which the words are marked. */
export function marked(text, words) {
  const places = words.flatMap((word) => [...text.matchAll(word)].map((match) => [match.index, match[0].length]))
    .sort(([one], [other]) => one - other);
  const nodes = [];
  let at = 0;
  for (const [start, length] of places) {
    if (start < at) continue;
    nodes.push(text.slice(at, start), el("mark", {}, text.slice(start, start + length)));
    at = start + length;
  }
  return [...nodes, text.slice(at)];
}

function shownText(message) {
  return message.role === "user" ? message.content : splitThinking(message).answer;
}

/** The surroundings of a word in one line. */
function piece(text, word) {
  const at = text.search(word);
  const start = Math.max(0, at - BEFORE);
  // No half of a character at the ends.
  const cut = text.slice(start, at + AFTER).replace(/^[\udc00-\udfff]|[\ud800-\udbff]$/g, "").replaceAll(/\s+/g, " ");
  return (start > 0 ? "…" : "") + cut + (at + AFTER < text.length ? "…" : "");
}

function escaped(text) {
  return text.replaceAll(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}
