// The live view of the engine: asks once a second, while it is seen.

import { getJson, send } from "../api.js";
import { byId } from "../dom.js";
import { BLOCKS, BlockMap, SLOTS } from "./blockmap.js";
import { histogram, quantile, since } from "./metrics.js";
import { Tile, showMemory, showPrefixes, showRequests } from "./panels.js";

const PERIOD = 1000;
// Readings that the time to the first token is taken over: a minute.
const WINDOW = 60;

/** Everything behind "Engine". */
export class EngineView {
  #shown = false;
  #polling = false;
  #before = null;
  #firstTokens = [];

  /** @param {import("../models.js").Models} models */
  constructor(models) {
    this.models = models;
    this.blockMap = new BlockMap(BLOCKS);
    this.slotMap = new BlockMap(SLOTS);
    this.tiles = {
      generated: new Tile("Generated", "tokens/s"),
      prompt: new Tile("Prompts", "tokens/s computed or cached"),
      requests: new Tile("Requests", "running"),
      firstToken: new Tile("First token", "no request yet"),
      hits: new Tile("Cache hits", "of prompt tokens"),
      inUse: new Tile("KV cache in use", "of all blocks"),
    };
    document.addEventListener("visibilitychange", () => this.#poll());
  }

  /** Begins or ends asking. */
  show(shown) {
    this.#shown = shown;
    this.#poll();
  }

  get #seen() {
    return this.#shown && !document.hidden;
  }

  async #poll() {
    if (this.#polling || !this.#seen) return;
    this.#polling = true;
    // Figures per second need two readings that follow each other.
    this.#before = null;
    while (this.#seen) {
      const started = performance.now();
      try {
        await this.#read(started);
        state(`Live, every ${PERIOD / 1000} s`, true);
      } catch (error) {
        state(error.message, false);
        this.#before = null;
      }
      await new Promise((resolve) => { setTimeout(resolve, Math.max(200, PERIOD - (performance.now() - started))); });
    }
    this.#polling = false;
  }

  async #read(now) {
    const model = this.models.chosen;
    const query = model === "" ? "" : `model=${encodeURIComponent(model)}`;
    const [stats, blocks, memory, requests, metrics] = await Promise.all([
      getJson(`v1/engine/stats?${query}`),
      getJson(`v1/engine/blocks?packed=true&${query}`),
      getJson(`v1/engine/memory?${query}`),
      getJson(`v1/engine/requests?${query}`),
      send("metrics").then((response) => response.text()),
    ]);
    // Figures of two engines have no difference that means anything.
    if (this.#before?.model !== model) {
      this.#before = null;
      this.#firstTokens = [];
    }
    this.blockMap.update(blocks, blocks.states);
    this.slotMap.update(blocks.state_slots, blocks.states);
    byId("slots").hidden = stats.state_slots_total === 0;
    showMemory(memory);
    showPrefixes(stats);
    showRequests(requests.requests, stats);
    this.#showFigures(stats, now);
    this.#showFirstToken(metrics);
    this.#before = { model, stats, now };
  }

  #showFigures(stats, now) {
    const { tiles } = this;
    const passed = this.#before === null ? null : (now - this.#before.now) / 1000;
    const rate = (name) => (passed === null ? 0 : (stats[name] - this.#before.stats[name]) / passed);
    const generated = rate("generated_tokens");
    const prompt = rate("prompt_tokens");
    tiles.generated.update(generated.toFixed(1), generated, `tokens/s, ${whole(stats.generated_tokens)} in all`);
    tiles.prompt.update(prompt.toFixed(1), prompt, `tokens/s, ${whole(stats.prompt_tokens)} in all`);
    const preempted = stats.num_preemptions ? `, ${whole(stats.num_preemptions)} preempted` : "";
    tiles.requests.update(String(stats.num_running), stats.num_running,
      `running, ${stats.num_waiting} waiting${preempted}`);
    const hits = stats.prefix_cache_hits / Math.max(1, stats.prefix_cache_queries);
    tiles.hits.update(percent(hits), hits,
      `${whole(stats.prefix_cache_hits)} of ${whole(stats.prefix_cache_queries)} prompt tokens`);
    const inUse = stats.blocks_owned / Math.max(1, stats.blocks_total);
    tiles.inUse.update(percent(inUse), inUse, `${whole(stats.blocks_owned)} of ${whole(stats.blocks_total)} blocks`);
  }

  #showFirstToken(metrics) {
    const buckets = histogram(metrics, "vllm:time_to_first_token_seconds", this.models.metricsName);
    this.#firstTokens.push(buckets);
    if (this.#firstTokens.length > WINDOW) this.#firstTokens.shift();
    const lately = quantile(since(buckets, this.#firstTokens[0]), 0.5);
    const median = lately ?? quantile(buckets, 0.5);
    if (median === null) {
      this.tiles.firstToken.update("–", 0, "no request yet");
      return;
    }
    const note = `median ${lately === null ? "since the start" : "of the last minute"}`;
    const text = median < 1 ? `${Math.round(median * 1000)} ms` : `${median.toFixed(2)} s`;
    this.tiles.firstToken.update(text, median, note);
  }
}

function state(text, live) {
  const element = byId("engine-state");
  // A status that says the same again would be read out each second.
  if (element.textContent !== text) element.textContent = text;
  element.classList.toggle("live", live);
}

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

function whole(number) {
  return number.toLocaleString("en");
}
