// Shows a block of code, with colours and a button that copies it.

import { copyText } from "../clipboard.js";
import { el, icon, iconButton } from "../dom.js";
import { highlight } from "./highlight.js";

/** A block of code that may grow: what is shown of it stays, with the selection and the place that was scrolled to. */
export class CodeView {
  #tokens = [];

  /** @param {{language: string, text: string}} block */
  constructor({ language, text }) {
    this.language = language;
    const copy = iconButton("copy", "Copy code", async () => {
      await copyText(this.text);
      copy.replaceChildren(icon("check"));
      setTimeout(() => copy.replaceChildren(icon("copy")), 1500);
    });
    const name = language || "text";
    this.code = el("code");
    this.element = el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", {}, name), copy),
      // It can be scrolled, so it can be reached by keyboard.
      el("pre", { tabindex: "0", role: "region", "aria-label": `Code, ${name}` }, this.code));
    this.update(text);
  }

  /** Shows a text in place of the one before. */
  update(text) {
    this.text = text;
    const tokens = highlight(text, this.language);
    let same = 0;
    while (same < tokens.length && equal(tokens[same], this.#tokens[same])) same += 1;
    while (this.code.childNodes.length > same) this.code.lastChild.remove();
    this.code.append(...tokens.slice(same).map(([kind, part]) => (
      kind === "" ? document.createTextNode(part) : el("span", { class: `token-${kind}` }, part))));
    this.#tokens = tokens;
  }
}

function equal(token, other) {
  return other !== undefined && token[0] === other[0] && token[1] === other[1];
}
