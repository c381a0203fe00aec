// Talks to the server: the key, errors, JSON and streams.

const KEY = "rocmforge.key";

/** An answer that is an error, or none at all (status 0). */
export class ApiError extends Error {
  constructor(status, message, { param = null, code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

let askForKey = async () => null;
let asking = null;

/** Says who asks the user for a key; `ask(rejected)` gives the key, or null where there is none. */
export function onMissingKey(ask) {
  askForKey = ask;
}

/** Forgets the key that the browser keeps. */
export function forgetKey() {
  localStorage.removeItem(KEY);
}

/** Whether the browser keeps a key. */
export function hasKey() {
  return localStorage.getItem(KEY) !== null;
}

/**
 * Sends a request and gives the answer.
 *
 * @param {string} path relative to the page, which may lie below a prefix
 * @param {RequestInit & {quiet?: boolean}} [options] `quiet`: a missing key is an error, and nobody is asked for it
 * @throws {ApiError} the server refuses, or does not answer
 */
export async function send(path, options = {}) {
  for (;;) {
    const used = localStorage.getItem(KEY);
    const headers = { ...options.headers };
    if (used !== null) headers.Authorization = `Bearer ${used}`;
    let response;
    try {
      response = await fetch(new URL(path, document.baseURI), { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server does not answer. Is it running?");
    }
    if (response.ok) return response;
    const error = await failure(response);
    if (response.status !== 401 || options.quiet) throw error;
    // Several requests may fail at once: the user is asked one time.
    asking ??= askForKey(used !== null).finally(() => { asking = null; });
    const key = await asking;
    if (key === null) throw error;
    localStorage.setItem(KEY, key);
  }
}

async function failure(response) {
  let message = `The server answered with status ${response.status}.`;
  let details = {};
  try {
    const { error } = await response.json();
    message = error.message ?? message;
    details = { param: error.param, code: error.code };
  } catch {
    // A proxy in between may answer with something else than JSON; the status is told.
  }
  const after = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  return new ApiError(response.status, message, { ...details, retryAfter: Number.isNaN(after) ? null : after });
}

/** Gives the JSON of an answer. */
export async function getJson(path, options) {
  return (await send(path, options)).json();
}

/**
 * Yields the events of a chat completion as they come.
 *
 * @param {Object} body the body of `/v1/chat/completions`
 * @param {AbortSignal} signal ends it, here and in the engine
 * @throws {ApiError} the server refuses, fails, or is gone before the end
 */
export async function* streamChat(body, signal) {
  const response = await send("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    // With each event, so that an answer that is stopped has figures as well.
    body: JSON.stringify({
      ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
    }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const value = JSON.parse(data);
    if (value.error) throw new ApiError(500, value.error.message ?? "The request failed.", value.error);
    yield value;
  }
  throw new ApiError(0, "The connection ended before the answer did.");
}

/**
 * Loads a model, unless it is loaded, and yields its status as it changes.
 *
 * @param {string} model its name
 * @param {AbortSignal} signal ends the watching, not the load
 * @throws {ApiError} it cannot be loaded
 */
export async function* streamLoad(model, signal) {
  const response = await send("models/load", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, stream: true }),
    signal,
  });
  for await (const data of events(response.body)) {
    const value = JSON.parse(data);
    if (value.error) throw new ApiError(500, value.error.message, value.error);
    yield value.status;
  }
}

/** Yields the data of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      let piece;
      try {
        piece = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, "The connection to the server was lost.");
      }
      if (piece.done) return;
      const lines = (rest + piece.value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
