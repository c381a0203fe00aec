// Lists the conversations: search, open, rename, export, delete.

import { byId, el, iconButton } from "../dom.js";
import { found, marked, wordsOf } from "./search.js";

/** The list at the side; on a narrow screen it opens over the page. */
export class Sidebar {
  #conversations = [];
  #current = null;
  #running = new Map();

  /** @param {Object} actions select(conversation, message), and rename, save and remove of a conversation */
  constructor(actions) {
    this.actions = actions;
    this.field = byId("search");
    this.field.addEventListener("input", () => {
      this.#fill();
      this.#tellFound();
    });
    this.field.addEventListener("keydown", (event) => this.#searchKey(event));
    this.element = byId("sidebar");
    byId("menu").addEventListener("click", () => this.#open(!this.element.classList.contains("open")));
    byId("backdrop").addEventListener("click", () => this.#open(false));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  /** Shows the conversations; `running` are the ids of those that are being answered. */
  show(conversations, current, running) {
    this.#conversations = conversations;
    this.#current = current;
    this.#running = running;
    this.#fill();
  }

  /** Lets the user write what to search for. */
  search() {
    if (byId("menu").checkVisibility()) this.#open(true);
    this.field.select();
    this.field.focus();
  }

  /** Shows all conversations again. */
  endSearch() {
    this.field.value = "";
    this.#fill();
    this.#tellFound();
  }

  /** Closes the list where it lies over the page. */
  close() {
    const wasOpen = this.element.classList.contains("open");
    this.#open(false);
    if (wasOpen) byId("menu").focus();
  }

  #open(open) {
    this.element.classList.toggle("open", open);
    byId("backdrop").hidden = !open;
    byId("conversation").inert = open;
    byId("menu").setAttribute("aria-expanded", String(open));
    if (open) byId("new").focus();
  }

  #fill() {
    // The list is made anew: whoever was in it stays at the same place.
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const words = wordsOf(this.field.value);
    const items = found(this.#conversations, words).map((one) => this.#item(one, words));
    byId("conversations").replaceChildren(...items);
    if (focused) this.element.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  #tellFound() {
    const count = byId("conversations").childElementCount;
    byId("search-state").textContent = this.field.value.trim() === "" ? ""
      : count === 0 ? "No chat has all of these words." : `${count} found`;
  }

  #searchKey(event) {
    if (event.isComposing) return;
    if (event.key === "Enter") byId("conversations").querySelector(".open-conversation")?.click();
    // Another Escape closes the list where it lies over the page.
    if (event.key !== "Escape" || this.field.value === "") return;
    event.preventDefault();
    event.stopPropagation();
    this.endSearch();
  }

  #item({ conversation, message, text }, words) {
    const current = conversation === this.#current;
    const running = this.#running;
    const title = conversation.title || "New chat";
    const button = (name, label, action) => iconButton(name, `${label} “${title}”`, () => action(conversation),
      { dataset: { focus: `${name}-${conversation.id}` } });
    return el("li", { class: current ? "current" : null },
      el("button", { type: "button", class: "open-conversation", "aria-current": current ? "true" : null,
        dataset: { focus: `open-${conversation.id}` }, onclick: () => this.actions.select(conversation, message) },
      running.has(conversation.id) ? el("span", { class: "pulse", role: "img", "aria-label": "Answering:" }) : null,
      el("span", { class: "names" }, el("span", { class: "name" }, ...marked(title, words)),
        message === null ? null : el("span", { class: "piece" }, ...marked(text, words)))),
      el("span", { class: "item-actions" }, button("edit", "Rename", this.actions.rename),
        button("download", "Export", this.actions.save), button("trash", "Delete", this.actions.remove)));
  }
}
