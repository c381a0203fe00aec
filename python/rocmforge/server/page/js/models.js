// The models of the server: which there are, which is chosen, and how far the load of one is.

import { announce } from "./announce.js";
import { getJson, streamLoad } from "./api.js";
import { byId, el } from "./dom.js";

const CHOSEN = "rocmforge.model";
// What a state adds to a model's name.
const NOTES = { loaded: "", loading: " (loading)", sleeping: " (asleep)", unloaded: " (not loaded)" };

/** The choice of a model in the bar, and the progress below it. */
export class Models {
  #loading = null;
  #failed = false;

  /**
   * @param {function(): void} changed called when another model is chosen
   * @param {function(string): void} notice tells the user what went wrong
   */
  constructor(changed, notice) {
    this.select = byId("model");
    this.notice = notice;
    this.select.addEventListener("change", () => {
      localStorage.setItem(CHOSEN, this.chosen);
      changed();
      this.load();
    });
    // Others may have loaded models meanwhile.
    this.select.addEventListener("focus", () => this.list().catch(() => {}));
  }

  /** The name of the chosen model; empty before the server has told what there is. */
  get chosen() {
    return this.select.value;
  }

  /** Asks the server which models there are and in what state. */
  async list() {
    const { data } = await getJson("v1/models");
    const before = this.chosen || localStorage.getItem(CHOSEN);
    const options = [...this.select.options];
    if (data.length !== options.length || data.some(({ id }, index) => options[index].value !== id)) {
      this.select.replaceChildren(...data.map(({ id }) => el("option", { value: id })));
      if (data.some(({ id }) => id === before)) this.select.value = before;
    }
    data.forEach(({ id, status }, index) => {
      this.select.options[index].textContent = id + (status.failed ? " (failed)" : NOTES[status.value]);
    });
  }

  /**
   * Loads the chosen model, if it is not loaded, and shows how far that is.
   *
   * @param {boolean} [tells] whether the user is told why it cannot be loaded; an answer that waits for it tells, too
   */
  async load(tells = true) {
    this.#loading?.abort();
    const controller = new AbortController();
    this.#loading = controller;
    const model = this.chosen;
    let waited = false;
    if (this.#failed) this.notice("");
    this.#failed = false;
    try {
      for await (const status of streamLoad(model, controller.signal)) {
        if (status.value !== "loaded") {
          waited = true;
          showProgress(model, status);
        }
      }
      if (waited) announce(`${model} is loaded`);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#failed = tells;
      if (tells) this.notice(error.message);
    }
    byId("load").hidden = true;
    await this.list().catch(() => {});
  }
}

function showProgress(model, status) {
  const text = `${status.stage === "download" ? "Downloading" : "Loading"} ${model}`;
  const bar = byId("load-progress");
  byId("load").hidden = false;
  // A status that says the same again would be read out each time.
  if (byId("load-text").textContent !== text) byId("load-text").textContent = text;
  if (status.total_bytes) bar.value = status.done_bytes / status.total_bytes;
  else bar.removeAttribute("value");
  byId("load-percent").textContent = status.total_bytes ? `${Math.floor(100 * bar.value)} %` : "";
}
