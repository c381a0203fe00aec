// Shows the messages of a conversation, and stays at the end while the reader is there.

import { byId, el } from "../dom.js";
import { MessageView } from "./message.js";

const EXAMPLES = [
  "Explain how a paged KV cache works, in five sentences.",
  "Write a Python function that merges two sorted lists, with a test.",
  "What is the difference between latency and throughput?",
];

/** The list of messages. */
export class Transcript {
  #views = new Map();
  #painting = new Map();
  // Whether the reader is at the end, and stays there as the text grows.
  #follows = true;

  /** @param {Object} actions of a message, and ask(text) for the examples */
  constructor(actions) {
    this.actions = actions;
    this.element = byId("messages");
    this.element.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.element;
      if (clientHeight > 0) this.#follows = scrollHeight - scrollTop - clientHeight < 80;
    });
    // An element that is not shown has no place to be scrolled to.
    new ResizeObserver(() => this.#follow()).observe(this.element);
  }

  /** Shows a conversation in place of the one before; `models` is of use for one without messages. */
  show(conversation, models = null) {
    this.#views.clear();
    this.element.replaceChildren();
    if (conversation.messages.length === 0) this.element.append(this.#welcome(models));
    for (const message of conversation.messages) this.#add(message);
    this.#scroll();
  }

  /** Shows a conversation in which another version of a message stands now; the reader stays at this place. */
  showVersion(conversation, message, step) {
    const { scrollTop } = this.element;
    this.show(conversation);
    this.element.scrollTop = scrollTop;
    this.#views.get(message).focusVersion(step);
  }

  /** Scrolls to the beginning of a message. */
  reveal(message) {
    this.#views.get(message).element.scrollIntoView({ block: "start" });
  }

  /** Shows a new message at the end. */
  append(message) {
    this.element.querySelector(".welcome")?.remove();
    this.#add(message);
    this.#scroll();
  }

  /** Shows what has changed in a message, if it is here; not more often than the machine can. */
  changed(message) {
    const view = this.#views.get(message);
    if (view === undefined) return;
    if (message.state !== "streaming") {
      this.#paint(view);
      return;
    }
    const state = this.#painting.get(message) ?? { waiting: false, pause: 0 };
    this.#painting.set(message, state);
    if (state.waiting) return;
    state.waiting = true;
    setTimeout(() => requestAnimationFrame(() => {
      state.waiting = false;
      if (this.#views.get(message) !== view || message.state !== "streaming") return;
      const before = performance.now();
      this.#paint(view);
      // A long answer takes longer to show: most of the time is left to the reader's own doing.
      state.pause = (performance.now() - before) * 4;
    }), state.pause);
  }

  #paint(view) {
    view.update();
    if (view.message.state !== "streaming") this.#painting.delete(view.message);
    this.#follow();
  }

  #add(message) {
    const view = new MessageView(message, this.actions);
    this.#views.set(message, view);
    this.element.append(view.element);
  }

  #follow() {
    if (this.#follows) this.#scroll();
  }

  #scroll() {
    this.#follows = true;
    this.element.scrollTop = this.element.scrollHeight;
  }

  #welcome({ chosen, chats }) {
    const examples = EXAMPLES.map((text) => el("button", { type: "button", class: "example",
      onclick: () => this.actions.ask(text) }, text));
    const title = chats ? "What would you like to know?" : "This model cannot chat.";
    const text = chats ? `${chosen} answers on this machine.`
      : `${chosen} is not a chat model. Choose another one.`;
    return el("div", { class: "welcome" }, el("img", { src: "page/icon.svg", alt: "", width: "56", height: "56" }),
      el("p", { class: "welcome-title" }, title), el("p", { class: "muted" }, chosen ? text : ""),
      chats ? el("div", { class: "examples" }, ...examples) : null);
  }
}
