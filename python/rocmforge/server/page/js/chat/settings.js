// The settings of a chat: the system prompt, and how tokens are chosen.

import { byId, el } from "../dom.js";

const KEY = "rocmforge.settings";

// Each is a parameter of `/v1/chat/completions`; the server says what it does not accept.
const FIELDS = [
  { name: "temperature", label: "Temperature", help: "0 always picks the most likely token." },
  { name: "top_p", label: "Top p", help: "Keeps the most likely tokens up to this total probability." },
  { name: "top_k", label: "Top k", help: "Keeps this many of the most likely tokens." },
  { name: "min_p", label: "Min p", help: "Minimum probability relative to the top token." },
  { name: "repetition_penalty", label: "Repetition penalty", help: "Above 1, fewer repetitions." },
  { name: "max_tokens", label: "Max tokens", help: "For each answer." },
  { name: "seed", label: "Seed", help: "The same one gives the same answer." },
];

/** The settings that new chats begin with. */
export function lastSettings() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

/** The parameters of a request that the settings give. */
export function parameters(settings) {
  return Object.fromEntries(FIELDS.filter(({ name }) => name in settings).map(({ name }) => [name, settings[name]]));
}

/** Whether a parameter is one of the settings. */
export function isSetting(name) {
  return FIELDS.some((field) => field.name === name);
}

/** The dialog of the settings. */
export class SettingsPanel {
  #settings = {};

  /** @param {function(Object): void} changed is called with the settings as they are now */
  constructor(changed) {
    this.dialog = byId("settings");
    this.form = byId("settings-form");
    this.changed = changed;
    for (const { name, label, help } of FIELDS) {
      byId("sampling").append(el("label", { class: "field" }, label,
        el("input", { type: "number", step: "any", name, placeholder: "Default", "aria-describedby": `help-${name}` }),
        el("span", { class: "help", id: `help-${name}` }, help)));
    }
    this.form.addEventListener("input", () => this.#read());
    this.form.addEventListener("reset", () => setTimeout(() => this.#read()));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.dialog.close();
    });
    byId("settings-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
  }

  /** Opens the dialog; `name` is the field to begin with. */
  open(settings, name = "system") {
    this.#settings = settings;
    for (const field of ["system", ...FIELDS.map((each) => each.name)]) {
      this.form.elements[field].value = settings[field] ?? "";
    }
    this.dialog.showModal();
    this.form.elements[name].focus();
  }

  #read() {
    const settings = {};
    const system = this.form.elements.system.value;
    if (system.trim()) settings.system = system;
    for (const { name } of FIELDS) {
      const input = this.form.elements[name];
      if (input.value !== "") settings[name] = input.valueAsNumber;
    }
    this.#settings = settings;
    localStorage.setItem(KEY, JSON.stringify(settings));
    this.changed(this.#settings);
  }
}
