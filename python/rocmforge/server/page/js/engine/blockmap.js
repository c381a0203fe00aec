// Draws the blocks of the KV cache, or the slots of recurrent states, on a canvas: a cell for each, or for several
// where there are too many. On request, those that are free are left out.

import { byId, el } from "../dom.js";

const GAP = 1;
const MAX_CELL = 14;
// With the free ones left out.
const MAX_ZOOMED_CELL = 28;
const MIN_CELL = 4;
const MAX_HEIGHT = 360;
// Seconds after which a cached block that nothing used is drawn in the faintest colour.
const OLD_SECONDS = 600;
const SHADES = 5;

/** What a block or slot can be, in the order of how much it says. */
const KINDS = [
  { name: "free", color: "--block-free" },
  { name: "cached", color: "--block-cached" },
  { name: "owned", color: "--block-owned" },
  { name: "shared", color: "--block-shared" },
];

/** What is drawn: how it is called, and the legend of each kind. */
export const BLOCKS = {
  name: "block", legends: ["Free", "Cached, by idle time", "Owned by one sequence", "Shared by several"],
};
export const SLOTS = {
  name: "slot", legends: ["Free", "Snapshot, by idle time", "Owned by one sequence", "Shared by several"],
};

/** Reads a base64 column of `/v1/engine/blocks?packed=true` as bytes. */
function bytes(column) {
  return Uint8Array.from(atob(column), (char) => char.charCodeAt(0));
}

/** The blocks of columns: kind (an index of KINDS), owners and idle seconds of each. */
function decoded(columns, states) {
  const state = bytes(columns.state);
  const owners = bytes(columns.owners);
  const idle = new DataView(bytes(columns.idle_deciseconds).buffer);
  const index = Object.fromEntries(KINDS.map(({ name }, number) => [name, number]));
  const kinds = state.map((value, block) => (
    states[value] === "owned" && owners[block] > 1 ? index.shared : index[states[value]]));
  const blocks = Array.from(kinds, (_, block) => block);
  return { kinds, owners, idle: (block) => idle.getUint16(2 * block, true) / 10, blocks };
}

/** The map, its legend and its text. */
export class BlockMap {
  #blocks = null;
  #layout = { columns: 1, cell: MAX_CELL, each: 1 };
  #chosen = null;
  #what;

  /** @param {object} what BLOCKS or SLOTS */
  constructor(what) {
    this.#what = what;
    this.canvas = this.#part("map");
    this.zoom = this.#part("zoom");
    this.#showLegend(null);
    this.zoom.addEventListener("click", () => {
      this.zoom.setAttribute("aria-pressed", String(!this.#zoomed));
      this.#choose(null);
    });
    new ResizeObserver(() => this.#draw()).observe(this.canvas);
    document.addEventListener("themechange", () => this.#draw());
    this.canvas.addEventListener("pointermove", (event) => this.#choose(this.#cellAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.#choose(null));
    this.canvas.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Shows columns of `/v1/engine/blocks?packed=true`. @param {string[]} states the names of the states */
  update(columns, states) {
    this.#blocks = decoded(columns, states);
    const counts = KINDS.map((_, kind) => this.#blocks.kinds.reduce((sum, each) => sum + (each === kind), 0));
    this.#showLegend(counts);
    this.#describe(counts);
    this.#draw();
    this.#showDetail();
  }

  get #zoomed() {
    return this.zoom.getAttribute("aria-pressed") === "true";
  }

  /** The numbers of the blocks that are drawn, in order. */
  get #drawn() {
    const { blocks, kinds } = this.#blocks;
    return this.#zoomed ? blocks.filter((block) => kinds[block] > 0) : blocks;
  }

  #part(name) {
    return byId(`${this.#what.name}-${name}`);
  }

  #showLegend(counts) {
    this.#part("legend").replaceChildren(...KINDS.map(({ name }, kind) => el("li", {},
      el("span", { class: `swatch ${name}` }), el("span", {}, this.#what.legends[kind]),
      el("strong", { dataset: { kind: name } }, counts === null ? "–" : counts[kind].toLocaleString("en")))));
  }

  #describe(counts) {
    const { blocks, kinds, idle } = this.#blocks;
    const cached = blocks.filter((block) => kinds[block] === 1).map(idle).sort((one, other) => one - other);
    const median = cached.length === 0 ? ""
      : `; the median of the cached ones is idle for ${seconds(cached[cached.length >> 1])}`;
    const [free, idleOnes, owned, shared] = counts;
    const text = `Map of ${blocks.length} ${this.#what.name}s: ${free} free, ${idleOnes} cached, `
      + `${owned} owned by one sequence, ${shared} shared by several${median}.`;
    this.#part("text").textContent = text;
    this.canvas.setAttribute("aria-label", text);
  }

  #draw() {
    if (this.#blocks === null || this.canvas.clientWidth === 0) return;
    const width = this.canvas.clientWidth;
    const { blocks, kinds, idle } = this.#blocks;
    const drawn = this.#drawn;
    this.#layout = layout(drawn.length, width, this.#zoomed ? MAX_ZOOMED_CELL : MAX_CELL);
    const { columns, cell, each } = this.#layout;
    const cells = Math.ceil(drawn.length / each);
    const height = Math.ceil(cells / columns) * cell;
    const scale = window.devicePixelRatio;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.#part("total").textContent = (this.#zoomed ? `${drawn.length.toLocaleString("en")} of ` : "")
      + `${blocks.length.toLocaleString("en")} ${this.#what.name}s`
      + (each > 1 ? `, ${each} to a cell, which shows the one most in use` : "");
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const colors = palette(this.canvas);
    for (let number = 0; number < cells; number += 1) {
      const block = mostUsed(kinds, idle, drawn.slice(number * each, (number + 1) * each));
      context.fillStyle = colors[kinds[block]][kinds[block] === 1 ? shade(idle(block)) : 0];
      context.fillRect((number % columns) * cell, Math.floor(number / columns) * cell, cell - GAP, cell - GAP);
    }
    this.#mark(context);
  }

  #mark(context) {
    if (this.#chosen === null) return;
    const { columns, cell } = this.#layout;
    context.strokeStyle = getComputedStyle(this.canvas).color;
    context.lineWidth = 2;
    const [x, y] = [(this.#chosen % columns) * cell, Math.floor(this.#chosen / columns) * cell];
    context.strokeRect(x, y, cell - GAP, cell - GAP);
  }

  #cellAt(event) {
    const { columns, cell } = this.#layout;
    const column = Math.floor(event.offsetX / cell);
    return column < columns ? Math.floor(event.offsetY / cell) * columns + column : null;
  }

  #move(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.#layout.columns, ArrowDown: this.#layout.columns };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.#choose(this.#chosen === null ? 0 : this.#chosen + steps[event.key]);
  }

  #choose(cell) {
    if (this.#blocks === null) return;
    const last = Math.ceil(this.#drawn.length / this.#layout.each) - 1;
    this.#chosen = cell === null || cell < 0 || cell > last ? null : cell;
    this.#draw();
    this.#showDetail();
  }

  #showDetail() {
    const detail = this.#part("detail");
    const { name: what } = this.#what;
    const { kinds, idle, owners } = this.#blocks;
    const { each } = this.#layout;
    const cell = this.#chosen === null ? [] : this.#drawn.slice(this.#chosen * each, (this.#chosen + 1) * each);
    // Blocks that are free by now are not drawn any more.
    if (cell.length === 0) {
      detail.textContent = `Point at a ${what}, or focus the map and use the arrow keys.`;
      return;
    }
    const block = mostUsed(kinds, idle, cell);
    const { name } = KINDS[kinds[block]];
    const parts = [`${what[0].toUpperCase()}${what.slice(1)} ${block}: ${name}`];
    const most = owners[block] === 255 ? " or more" : "";
    if (owners[block] > 0) parts.push(owners[block] === 1 ? "1 owner" : `${owners[block]}${most} owners`);
    if (name === "cached") parts.push(`idle for ${seconds(idle(block))}`);
    detail.textContent = parts.join(", ");
  }
}

/** How large a cell is, how many are in a row, and how many blocks each shows. */
function layout(count, width, largest) {
  for (let each = 1; ; each += 1) {
    for (let cell = largest; cell >= MIN_CELL; cell -= 1) {
      const columns = Math.max(1, Math.floor((width + GAP) / cell));
      if (Math.ceil(Math.ceil(count / each) / columns) * cell <= MAX_HEIGHT) return { columns, cell, each };
    }
  }
}

/** The block that says most among those of a cell: the one most in use, of cached ones the youngest. */
function mostUsed(kinds, idle, blocks) {
  return blocks.reduce((best, block) => {
    const younger = kinds[block] === 1 && kinds[best] === 1 && idle(block) < idle(best);
    return kinds[block] > kinds[best] || younger ? block : best;
  });
}

/** Which shade of the cached ones: each step is some four times as old. */
function shade(age) {
  const share = Math.log1p(age) / Math.log1p(OLD_SECONDS);
  return Math.min(SHADES - 1, Math.floor(share * SHADES));
}

/** The colours by kind. A custom property is text until a real one takes it; `fill` changes nothing of a canvas. */
function palette(canvas) {
  const style = getComputedStyle(canvas);
  const computed = (name) => {
    canvas.style.fill = `var(${name})`;
    return style.fill;
  };
  return KINDS.map(({ name, color }) => (name !== "cached" ? [computed(color)]
    : Array.from({ length: SHADES }, (_, step) => computed(`${color}-${step}`))));
}

/** A time that a reader takes in at once. */
function seconds(value) {
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  return value < 6553 ? `${Math.round(value / 60)} min` : "more than 109 min";
}
