// Reads the files that "Export" and "Export all" write. A file may come from anywhere, so every value is checked.

import { isSetting } from "./settings.js";

const MAX_MEGABYTES = 64;
// Versions may have versions of their own.
const MAX_DEPTH = 200;

/** A file that is no export; the message says where and why. */
export class ImportError extends Error {}

/**
 * The conversations of a file.
 *
 * @param {File} file
 * @returns {Promise<Object[]>}
 * @throws {ImportError} the file is no export
 */
export async function readConversations(file) {
  if (file.size > MAX_MEGABYTES << 20) {
    throw new ImportError(`${file.name} has ${Math.ceil(file.size / (1 << 20))} MB; at most ${MAX_MEGABYTES} MB can be `
      + "imported.");
  }
  let value;
  try {
    value = JSON.parse(await file.text());
  } catch (error) {
    throw new ImportError(`${file.name} is no JSON file: ${error.message}`);
  }
  if (!isObject(value) && !Array.isArray(value)) {
    throw new ImportError(`${file.name} has ${named(value)}; expected conversations that this page exported.`);
  }
  const all = Array.isArray(value) ? value : [value];
  return all.map((one, index) => conversation(one, `Conversation ${index + 1}`));
}

/** Whether an imported conversation is the one that is kept. */
export function isSame(imported, kept) {
  return JSON.stringify(imported) === JSON.stringify(conversation(JSON.parse(JSON.stringify(kept)), "It"));
}

const text = (value, place) => expected(typeof value === "string", value, place, "a text");
const number = (value, place) => expected(Number.isFinite(value), value, place, "a number");
const flag = (value, place) => expected(typeof value === "boolean", value, place, "true or false");
const oneOf = (...names) => (value, place) => (
  expected(names.includes(value), value, place, names.map((name) => `"${name}"`).join(" or ")));

/** Checks an object whose fields are known; the optional ones have a name that ends in `?`. */
function object(fields) {
  return (value, place, depth = 0) => {
    expected(isObject(value), value, place, "an object");
    for (const name of Object.keys(fields)) {
      if (!name.endsWith("?") && !Object.hasOwn(value, name)) throw new ImportError(`${place} has no "${name}".`);
    }
    const checked = {};
    for (const [name, inner] of Object.entries(value)) {
      const check = [name, `${name}?`].filter((field) => Object.hasOwn(fields, field)).map((field) => fields[field])[0];
      if (check === undefined) throw new ImportError(`${place} has the unknown field ${named(name)}.`);
      checked[name] = check(inner, `${place}, "${name}"`, depth);
    }
    return checked;
  };
}

function list(check) {
  return (value, place, depth = 0) => {
    expected(Array.isArray(value), value, place, "a list");
    return value.map((inner, index) => check(inner, `${place}, number ${index + 1}`, depth));
  };
}

function settings(value, place) {
  expected(isObject(value), value, place, "an object");
  for (const [name, setting] of Object.entries(value)) {
    if (name === "system") text(setting, `${place}, "system"`);
    else if (isSetting(name)) number(setting, `${place}, "${name}"`);
    else throw new ImportError(`${place} has the unknown setting ${named(name)}.`);
  }
  return { ...value };
}

/** Checks the server's figures, of which there may be more than this page shows. */
function usage(value, place) {
  expected(isObject(value), value, place, "an object");
  number(value.completion_tokens, `${place}, "completion_tokens"`);
  number(value.prompt_tokens, `${place}, "prompt_tokens"`);
  const details = value.prompt_tokens_details;
  if (details !== undefined && details !== null) number(details.cached_tokens, `${place}, "cached_tokens"`);
  return value;
}

/** Checks the versions of a message: lists of messages, and null for the version that is shown. */
function versions(value, place, depth) {
  if (depth > MAX_DEPTH) throw new ImportError(`${place}: there are more than ${MAX_DEPTH} versions in each other.`);
  const checked = list((one, where) => (one === null ? null : list(message)(one, where, depth + 1)))(value, place);
  const shown = checked.filter((one) => one === null).length;
  expected(shown === 1, shown, place, "one null, which stands for the version that is shown");
  expected(checked.every((one) => one === null || one.length > 0), value, place, "no version without messages");
  return checked;
}

/** Checks an image that is in the file itself: the page asks no other site for one. */
const image = (value, place) => (
  expected(/^data:image\/[\w.+-]+;base64,/.test(text(value, place)), value, place, "a data: URL of an image"));
const optionalText = (value, place) => (value === null ? null : text(value, place));
const message = object({
  id: text,
  role: oneOf("user", "assistant"),
  content: text,
  "images?": list(image),
  "thinking?": text,
  // Nothing comes any more for an answer that was on its way.
  "state?": (value, place) => (text(value, place) === "streaming" ? "interrupted" : value),
  "model?": text,
  "finish?": text,
  "seconds?": number,
  "firstToken?": number,
  "usage?": usage,
  "error?": object({ text, param: optionalText, "final?": flag }),
  "versions?": versions,
});
const conversation = object({
  id: text, title: text, created: number, updated: number, settings, messages: list(message),
});

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function expected(holds, value, place, what) {
  if (!holds) throw new ImportError(`${place}: got ${named(value)}, expected ${what}.`);
  return value;
}

/** A value in a few words. */
function named(value) {
  if (value === undefined) return "nothing";
  if (Array.isArray(value)) return "a list";
  if (isObject(value)) return "an object";
  const json = JSON.stringify(value);
  return json.length > 60 ? `${json.slice(0, 59)}…` : json;
}
