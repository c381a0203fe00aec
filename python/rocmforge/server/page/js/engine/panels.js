// The figures of the engine: tiles with their course, the requests, the memory.

import { byId, el, svg } from "../dom.js";

const HISTORY = 60;
const [WIDTH, HEIGHT] = [120, 28];

/** A figure with its name, and its course over the last minute. */
export class Tile {
  #history = [];

  /** @param {string} label its name; @param {string} hint what it means */
  constructor(label, hint) {
    this.value = el("dd", {}, "–");
    this.note = el("dd", { class: "note" }, hint);
    this.line = svg("polyline", { class: "line" });
    this.area = svg("polygon", { class: "area" });
    this.element = el("dl", { class: "tile" }, el("dt", {}, label), this.value, this.note,
      el("dd", { "aria-hidden": "true" }, svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" },
        this.area, this.line)));
    byId("tiles").append(this.element);
  }

  /** Shows a value. @param {string} text as it is read @param {number} number for the course @param {string} [note] */
  update(text, number, note) {
    this.value.textContent = text;
    if (note !== undefined) this.note.textContent = note;
    this.#history.push(number);
    if (this.#history.length > HISTORY) this.#history.shift();
    const most = Math.max(...this.#history, 1e-9);
    const points = this.#history.map((value, index) => {
      const x = index * (WIDTH / (HISTORY - 1));
      return `${x.toFixed(1)},${(HEIGHT - 1.5 - (value / most) * (HEIGHT - 3)).toFixed(1)}`;
    });
    this.line.setAttribute("points", points.join(" "));
    const last = points.at(-1).split(",")[0];
    this.area.setAttribute("points", `0,${HEIGHT} ${points.join(" ")} ${last},${HEIGHT}`);
  }
}

// What the engine says that a request waits for.
const WAITING_FOR = {
  priority: "requests of higher priority",
  client_share: "the turn of its client",
  sequence_slots: "a free sequence slot",
  kv_blocks: "free KV cache blocks or state slots",
  step_tokens: "room in a step",
  partial_prefills: "a prompt that is being computed",
  shared_prefix: "its prefix, which is being computed",
  kv_offload: "its prefix, which is read from files or copied to the device",
};

// Why the prefix cache had no more of a prompt.
const MISSES = {
  last_block: "the rest is its last block",
  new: "the rest is new",
  evicted: "the rest was evicted",
  forgotten: "the rest is new or was evicted long ago",
  no_snapshot: "no state snapshot was kept for the rest",
  host_memory: "the rest was evicted to host memory again",
  files: "host memory had no room for the rest, which is in files",
  unreadable: "the file of the rest had vanished or was damaged",
  all_positions: "all positions are computed for their logits",
  disabled: "prefix caching is off",
};

/** Shows the requests that have not ended. */
export function showRequests(requests, stats) {
  byId("request-total").textContent = `${stats.num_running} running, ${stats.num_waiting} waiting`;
  if (requests.length === 0) {
    byId("requests").replaceChildren(el("p", { class: "muted" }, "No request of yours runs."));
    return;
  }
  byId("requests").replaceChildren(el("ul", { class: "requests" }, ...requests.map(requestItem)));
}

function requestItem(request) {
  const { generated_tokens: generated, max_tokens: most, prompt_tokens: prompt, cached_tokens: cached, miss } = request;
  const begun = request.seconds_to_first_token !== null;
  const writing = begun ? request.seconds - request.seconds_to_first_token : 0;
  const facts = [
    cached === null ? `${prompt} prompt tokens` : `${prompt} prompt tokens, ${cached} cached: ${MISSES[miss]}`,
    !request.streamed ? "not streamed" : `${generated} generated${most === null ? "" : ` of ${most * request.n}`}`,
    writing > 0 && generated > 1 ? `${((generated - 1) / writing).toFixed(1)} tokens/s` : null,
    `${request.seconds.toFixed(1)} s`,
  ];
  const waitsFor = WAITING_FOR[request.waiting_for] ?? null;
  const state = waitsFor !== null ? `waiting for ${waitsFor}` : begun ? "generating"
    : request.streamed ? "waiting or computing its prompt" : "running";
  const bar = request.streamed && most !== null
    ? el("progress", { max: most * request.n, value: generated, "aria-label": "Tokens generated" }) : null;
  return el("li", {},
    el("div", { class: "request-head" }, el("strong", { title: request.id }, nameOf(request.id)),
      el("span", { class: begun ? "tag busy" : "tag" }, state),
      request.client === "anonymous" ? null : el("span", { class: "muted" }, `client ${request.client}`)),
    bar, el("p", { class: "muted" }, facts.filter(Boolean).join(" · ")));
}

// What requests are called, by how the server begins their ids; other ids say what they are.
const KINDS = {
  chatcmpl: "Chat completion",
  cmpl: "Completion",
  embd: "Embedding",
  infill: "Infill",
  msg: "Message",
  ollama: "Ollama request",
  resp: "Response",
};

/** A request's API and the beginning of its number; an id that a client chose is shown as it is. */
function nameOf(id) {
  const [, kind, number] = /^([a-z]+)[-_]([0-9a-f]{6})[0-9a-f]{20,}(?:-\d+)?$/.exec(id) ?? [];
  if (kind in KINDS) return `${KINDS[kind]} ${number}`;
  return id.length > 22 ? `${id.slice(0, 21)}…` : id;
}

const PURPOSES = [
  { name: "weights", label: "Weights" },
  { name: "kv_cache", label: "KV cache" },
  { name: "scratch", label: "Scratch" },
  { name: "other", label: "Other" },
  { name: "host_weights", label: "Weights in the host's memory" },
  { name: "kv_offload", label: "Offloaded KV cache in the host's memory" },
];

/** Shows what holds the device's memory. */
export function showMemory(memory) {
  byId("memory-total").textContent = size(memory.total);
  showShares("memory", "Memory by purpose", PURPOSES, memory, size);
}

const LOOKED_UP = [
  { name: "found", label: "Found" },
  { name: "new", label: "New" },
  { name: "evicted", label: "Evicted" },
  { name: "forgotten", label: "New or evicted long ago" },
  { name: "no_snapshot", label: "No state snapshot" },
  { name: "host_memory", label: "In host memory" },
  { name: "files", label: "In files" },
  { name: "unreadable", label: "File lost" },
  { name: "last_block", label: "Last block, always computed" },
];

/** Shows what the prefix cache had of the prompts, and why it did not have the rest. */
export function showPrefixes(stats) {
  byId("prefixes-total").textContent = `${stats.prefix_cache_queries.toLocaleString("en")} prompt tokens looked up`;
  const counts = { ...stats.prefix_cache_misses, found: stats.prefix_cache_hits };
  showShares("prefixes", "Prompt tokens by what the prefix cache had of them", LOOKED_UP, counts,
    (count) => count.toLocaleString("en"));
}

/** Shows the parts of a whole as a bar and a table. */
function showShares(id, caption, parts, values, written) {
  const total = Math.max(1, parts.reduce((sum, { name }) => sum + values[name], 0));
  const bar = svg("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" });
  let at = 0;
  for (const { name } of parts) {
    const share = (100 * values[name]) / total;
    bar.append(svg("rect", { x: at, y: 0, width: share, height: 1, class: name }));
    at += share;
  }
  const rows = parts.map(({ name, label }) => el("tr", { dataset: { part: name } },
    el("th", { scope: "row" }, el("span", { class: `swatch ${name}` }), label),
    el("td", {}, written(values[name])),
    el("td", { class: "muted" }, `${((100 * values[name]) / total).toFixed(1)} %`)));
  byId(id).replaceChildren(bar, el("table", {}, el("caption", { class: "visually-hidden" }, caption),
    el("tbody", {}, ...rows)));
}

/** Bytes with the unit that fits. */
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes > 0 ? Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10)) : 0;
  const value = bytes / 1024 ** power;
  return `${value.toFixed(power === 0 || value >= 100 ? 0 : 1)} ${units[power]}`;
}
