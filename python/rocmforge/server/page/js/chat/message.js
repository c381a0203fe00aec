// Shows one message: its text, what can be done with it, and how it ended.

import { copyText } from "../clipboard.js";
import { el, icon, iconButton } from "../dom.js";
import { Markdown } from "../markdown/render.js";
import { canContinue } from "./answer.js";
import { isSetting } from "./settings.js";
import { splitThinking } from "./thinking.js";
import { versionOf } from "./versions.js";

const ENDS = {
  stopped: "Stopped.",
  interrupted: "Interrupted: the page was closed during this answer.",
  length: "The answer reached its limit of tokens.",
  timeout: "The request timed out.",
  abort: "The server ended the request.",
};

/** The element of one message, which follows the message. */
export class MessageView {
  /**
   * @param {Object} message
   * @param {Object} actions what the buttons do: regenerate(message), edit(message, text), openSettings(name),
   *   switchVersion(message, step), continueAnswer(message)
   */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.answers = message.role === "assistant";
    this.reasoning = el("div", { class: "markdown" });
    this.summary = el("span");
    this.thinking = el("details", { class: "thinking", hidden: true }, el("summary", {}, this.summary), this.reasoning);
    this.text = el("div", { class: this.answers ? "markdown" : "plain" });
    this.end = el("div", { class: "end" });
    this.figures = el("span", { class: "figures" });
    this.buttons = el("div", { class: "actions" });
    this.foot = el("div", { class: "message-foot" }, this.#versions(), this.buttons, this.figures);
    this.body = el("div", { class: "message-body" }, images(message), this.thinking, this.text, this.end);
    this.element = el("article", { class: `message ${message.role}`, "aria-label": this.answers ? "Answer" : "You" },
      this.body, this.foot);
    this.markdown = new Markdown(this.text);
    this.reasoningMarkdown = new Markdown(this.reasoning);
    this.#fillButtons();
    this.update();
  }

  /** Shows the message as it is now. */
  update() {
    const { message } = this;
    const streaming = message.state === "streaming";
    this.element.classList.toggle("streaming", streaming);
    this.element.setAttribute("aria-busy", String(streaming));
    if (!this.answers) {
      this.text.textContent = message.content;
      return;
    }
    const { thinking, answer, open } = splitThinking(message);
    this.thinking.hidden = thinking === "";
    this.summary.textContent = open && streaming ? "Thinking…" : "Thought";
    this.reasoningMarkdown.update(thinking);
    this.markdown.update(answer);
    this.text.classList.toggle("waiting", streaming && answer === "" && thinking === "");
    this.foot.hidden = streaming;
    this.#showEnd();
    this.figures.textContent = figures(message);
  }

  #showEnd() {
    const { message } = this;
    this.end.replaceChildren();
    // Only the last message of a conversation can go on: the style sheet hides the button of the others.
    const goOn = canContinue(message) ? el("button", { type: "button", class: "quiet-button small continue",
      onclick: () => this.actions.continueAnswer(message) }, icon("play"), "Continue") : null;
    if (message.error) {
      const { text, param, final } = message.error;
      const buttons = final ? [] : [el("button", { type: "button", class: "button small",
        onclick: () => this.actions.regenerate(message) }, "Try again")];
      if (isSetting(param)) {
        buttons.push(el("button", { type: "button", class: "quiet-button small",
          onclick: () => this.actions.openSettings(param) }, "Open settings"));
      }
      this.end.append(el("div", { class: "error", role: "alert" }, el("p", {}, text),
        el("div", {}, ...buttons, goOn)));
    } else if (message.state in ENDS) {
      this.end.append(el("div", { class: "ended" }, el("p", {}, ENDS[message.state]), goOn));
    }
  }

  #fillButtons() {
    const { message, actions } = this;
    const copy = iconButton("copy", "Copy message", async () => {
      await copyText(this.answers ? splitThinking(message).answer : message.content);
      copy.replaceChildren(icon("check"));
      setTimeout(() => copy.replaceChildren(icon("copy")), 1500);
    });
    this.buttons.append(copy, iconButton("edit", "Edit message", () => this.#edit()));
    if (this.answers) {
      this.buttons.append(iconButton("redo", "Regenerate", () => actions.regenerate(message)));
    }
  }

  /** The choice between the versions; null where there is one alone. */
  #versions() {
    const { number, count } = versionOf(this.message);
    if (count === 1) return null;
    const button = (name, label, step, ends) => iconButton(name, label,
      () => this.actions.switchVersion(this.message, step), { "aria-disabled": ends ? "true" : null });
    this.before = button("previous", "Previous version", -1, number === 1);
    this.after = button("next", "Next version", 1, number === count);
    return el("div", { class: "versions", role: "group", "aria-label": `Version ${number} of ${count}` },
      this.before, el("span", { "aria-hidden": "true" }, `${number}/${count}`), this.after);
  }

  /** Puts the focus on the button that leads to the next version, or to the one before. */
  focusVersion(step) {
    (step > 0 ? this.after : this.before).focus();
  }

  /** Puts a form in the place of the text. */
  #edit() {
    const area = el("textarea", { "aria-label": "Edit message", rows: "3" });
    area.value = this.message.content;
    const close = () => {
      form.remove();
      this.body.hidden = this.foot.hidden = false;
      this.buttons.children[1].focus();
    };
    const form = el("form", { class: "edit-form", onsubmit: (event) => {
      event.preventDefault();
      if (!area.value.trim() && this.message.images === undefined) return;
      close();
      this.actions.edit(this.message, area.value);
    }, onkeydown: (event) => {
      if (event.key === "Escape") close();
    } }, area, el("div", { class: "edit-buttons" },
      el("button", { type: "button", class: "quiet-button small", onclick: close }, "Cancel"),
      el("button", { type: "submit", class: "button small" }, this.answers ? "Save" : "Send")));
    this.body.hidden = this.foot.hidden = true;
    this.element.append(form);
    area.style.height = `${Math.min(area.scrollHeight + 4, 400)}px`;
    area.focus();
  }
}

/** The images of a message; null if there are none. */
function images({ images: urls }) {
  if (urls === undefined) return null;
  return el("div", { class: "images" },
    ...urls.map((src, index) => el("img", { src, alt: `Image ${index + 1} of ${urls.length}` })));
}

function figures(message) {
  const parts = [];
  const { usage, seconds, firstToken } = message;
  if (usage) {
    parts.push(`${usage.completion_tokens} tokens`);
    const writing = seconds - firstToken;
    if (usage.completion_tokens > 1 && writing > 0) {
      parts.push(`${((usage.completion_tokens - 1) / writing).toFixed(1)} tokens/s`);
    }
  }
  if (firstToken) parts.push(`first token after ${firstToken.toFixed(2)} s`);
  if (usage?.prompt_tokens_details) {
    parts.push(`${usage.prompt_tokens_details.cached_tokens} of ${usage.prompt_tokens} prompt tokens cached`);
  }
  return parts.join(" · ");
}
