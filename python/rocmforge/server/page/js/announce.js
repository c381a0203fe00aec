// Tells users of screen readers what goes on.

import { byId, el } from "./dom.js";

/** Says a text when nothing else is being said. */
export function announce(text) {
  byId("announcer").append(el("p", {}, text));
  while (byId("announcer").childElementCount > 20) byId("announcer").firstElementChild.remove();
}

/** Says a text that grows, sentence by sentence: a region that changes with every token could not be followed. */
export class Reading {
  #said;

  /** @param {number} [said] the length of the text that needs not be said */
  constructor(said = 0) {
    this.#said = said;
  }

  /** Takes all of the text so far. */
  update(text) {
    const ends = [...text.slice(this.#said).matchAll(/[.!?:]\s|\n/g)];
    if (ends.length === 0) return;
    const last = ends[ends.length - 1];
    this.#say(text, this.#said + last.index + last[0].length);
  }

  /** Says the rest. */
  end(text) {
    this.#say(text, text.length);
  }

  #say(text, until) {
    const piece = text.slice(this.#said, until).trim();
    if (piece) announce(piece);
    this.#said = until;
  }
}
