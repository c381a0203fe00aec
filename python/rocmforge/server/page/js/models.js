// The models of the server: which there are, which is chosen, and how far the load of one is.

import { announce } from "./announce.js";
import { getJson, streamLoad } from "./api.js";
import { byId, el } from "./dom.js";

const CHOSEN = "rocmforge.model";
// What a state adds to a model's name.
const STATES = { loaded: null, loading: "loading", sleeping: "asleep", unloaded: "not loaded" };

/** The choice of a model in the bar, and the progress below it. */
export class Models {
  #listed = [];
  #loading = null;
  #failed = false;

  /**
   * @param {function(): void} changed called when another model is chosen, or more is known of this one
   * @param {function(string): void} notice tells the user what went wrong
   */
  constructor(changed, notice) {
    this.select = byId("model");
    this.changed = changed;
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

  /** The name that figures of the chosen model have, which may be chosen by another name of it. */
  get metricsName() {
    return this.#model?.parent ?? this.chosen;
  }

  /** Whether the chosen model may read images; of one that is not loaded, nothing is known against it. */
  get sees() {
    return this.#model?.status.value !== "loaded" || this.#model.architecture.input_modalities.includes("image");
  }

  /** Whether the chosen model may take conversations; of a file that is not here, nothing is known against it. */
  get chats() {
    return this.#model?.chats !== false;
  }

  get #model() {
    return this.#listed.find(({ id }) => id === this.chosen);
  }

  /** Asks the server which models there are and in what state. */
  async list() {
    const { data } = await getJson("v1/models");
    const [saw, chatted] = [this.sees, this.chats];
    this.#listed = data;
    const before = this.chosen || localStorage.getItem(CHOSEN);
    const options = [...this.select.options];
    if (data.length !== options.length || data.some(({ id }, index) => options[index].value !== id)) {
      this.select.replaceChildren(...data.map(({ id }) => el("option", { value: id })));
      const known = data.find(({ id }) => id === before) ?? firstChoice(data);
      if (known) this.select.value = known.id;
    }
    data.forEach((model, index) => { this.select.options[index].textContent = labelOf(model); });
    if (this.sees !== saw || this.chats !== chatted) this.changed();
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

/** The model of a first visit: a loaded one that chats, else any that does, else one that nothing is known against. */
function firstChoice(models) {
  const usable = models.filter(({ chats, status }) => chats !== false && !status.failed);
  return usable.find(({ status }) => status.value === "loaded") ?? usable.find(({ chats }) => chats) ?? usable[0]
    ?? models[0];
}

/** A model's name, with what keeps it from answering at once. */
function labelOf({ id, chats, status }) {
  const notes = [chats === false ? "cannot chat" : null, status.failed ? "failed" : STATES[status.value]];
  const said = notes.filter(Boolean).join(", ");
  return said ? `${id} (${said})` : id;
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
