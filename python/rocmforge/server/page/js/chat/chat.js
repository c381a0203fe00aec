// Conversations and their answers: what is asked, what comes, and what is kept.

import { Reading, announce } from "../announce.js";
import { streamChat } from "../api.js";
import { askForName, confirmed } from "../dialogs.js";
import { byId } from "../dom.js";
import { download, newConversation, newId } from "../store.js";
import { answerBody, continuedBody, failAnswer, finishAnswer, takeEvent } from "./answer.js";
import { SettingsPanel, lastSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { splitThinking } from "./thinking.js";
import { Transcript } from "./transcript.js";
import { ImportError, isSame, readConversations } from "./transfer.js";
import { addVersions, setAside, switchVersion, versionOf } from "./versions.js";

const SAVE_MILLISECONDS = 1000;
const READ_MILLISECONDS = 500;
const CURRENT = "rocmforge.current";

/** The chat: the conversation that is shown, and all others. */
export class Chat {
  #conversations = [];
  #current = null;
  // What runs, by the id of its conversation: an AbortController.
  #running = new Map();

  /**
   * @param {import("../store.js").Store} store
   * @param {import("../models.js").Models} models
   */
  constructor(store, models) {
    this.store = store;
    this.models = models;
    this.settings = new SettingsPanel((settings) => {
      this.#current.settings = settings;
      this.#save(this.#current);
    });
    this.sidebar = new Sidebar({
      select: (conversation, message) => this.select(conversation, message),
      rename: (conversation) => this.#rename(conversation),
      save: (conversation) => download(`${fileName(conversation)}.json`, conversation),
      remove: (conversation) => this.#remove(conversation),
    });
    this.transcript = new Transcript({
      regenerate: (message) => this.#regenerate(message),
      continueAnswer: (message) => this.#continue(message),
      edit: (message, text) => this.#edit(message, text),
      switchVersion: (message, step) => this.#switchVersion(message, step),
      openSettings: (name) => this.settings.open(this.#current.settings, name),
      ask: (text) => this.ask(text),
    });
    byId("settings-button").addEventListener("click", () => this.settings.open(this.#current.settings));
    byId("new").addEventListener("click", () => this.newChat());
    byId("export-all").addEventListener("click", () => download("rocmforge-chats.json", this.#conversations));
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", () => this.#import(byId("import-file")));
    byId("stop").addEventListener("click", () => this.stop());
  }

  /** Shows what the browser has kept. */
  async start() {
    this.#conversations = await this.store.all();
    for (const { messages } of this.#conversations) {
      // It came while the page was closed or loaded anew.
      for (const message of messages) if (message.state === "streaming") message.state = "interrupted";
    }
    const last = this.#conversations.find(({ id }) => id === sessionStorage.getItem(CURRENT));
    this.select(last ?? newConversation(lastSettings()));
  }

  /** Begins a conversation. */
  newChat() {
    this.sidebar.endSearch();
    this.select(newConversation(lastSettings()));
  }

  /** Lets the user search the conversations. */
  search() {
    this.sidebar.search();
  }

  /** Shows a conversation, at a message of it or at its end. */
  select(conversation, message = null) {
    this.#current = conversation;
    sessionStorage.setItem(CURRENT, conversation.id);
    this.transcript.show(conversation, this.models);
    this.#showState();
    this.sidebar.close();
    byId("prompt").focus({ preventScroll: true });
    if (message !== null) this.transcript.reveal(message);
  }

  /** Shows the name of the model where nothing has been said yet. */
  modelChanged() {
    if (this.#current?.messages.length === 0) this.transcript.show(this.#current, this.models);
  }

  /** Adds a message of the user and answers it; returns whether it was taken. It may have older versions. */
  ask(text, { images = [], versions = [] } = {}) {
    const conversation = this.#current;
    if ((!text.trim() && images.length === 0) || this.#running.has(conversation.id)) return false;
    if (!this.#conversations.includes(conversation)) this.#conversations.unshift(conversation);
    conversation.title ||= titleOf(text) || "Image";
    const message = { id: newId(), role: "user", content: text };
    if (images.length > 0) message.images = images;
    addVersions(message, versions);
    conversation.messages.push(message);
    this.transcript.append(message);
    this.#answer(conversation);
    return true;
  }

  /** Ends the answer that comes, here and in the engine. */
  stop() {
    this.#running.get(this.#current.id)?.abort();
  }

  /** Answers a conversation's last message; the answer may have older versions. */
  #answer(conversation, versions = []) {
    const body = answerBody(conversation, this.models.chosen);
    const message = {
      id: newId(), role: "assistant", content: "", thinking: "", state: "streaming", model: body.model,
    };
    addVersions(message, versions);
    conversation.messages.push(message);
    if (conversation === this.#current) this.transcript.append(message);
    this.#receive(conversation, message, body);
  }

  /** Continues a conversation's last answer, which ended early. */
  #continue(message) {
    const conversation = this.#current;
    if (this.#running.has(conversation.id) || message !== conversation.messages.at(-1)) return;
    const body = continuedBody(conversation, this.models.chosen);
    Object.assign(message, { state: "streaming", model: body.model });
    delete message.error;
    delete message.finish;
    this.transcript.changed(message);
    this.#receive(conversation, message, body);
  }

  /** Takes what the server answers into a message. */
  async #receive(conversation, message, body) {
    const controller = new AbortController();
    this.#running.set(conversation.id, controller);
    conversation.updated = Date.now();
    this.#conversations.sort((one, other) => other.updated - one.updated);
    this.#showState();
    announce("Answering");
    const saving = setInterval(() => this.#save(conversation), SAVE_MILLISECONDS);
    await this.#save(conversation);
    const reading = new Reading(splitThinking(message).answer.length);
    let read = 0;
    const started = performance.now();
    const seconds = () => (performance.now() - started) / 1000;
    const figures = {};
    try {
      for await (const event of streamChat(body, controller.signal)) {
        takeEvent(message, figures, event, seconds);
        this.transcript.changed(message);
        // Each look at the whole text costs more the longer it is.
        if (conversation !== this.#current || performance.now() - read < READ_MILLISECONDS) continue;
        reading.update(splitThinking(message).answer);
        read = performance.now();
      }
      message.state = message.finish ?? "done";
    } catch (error) {
      failAnswer(message, error);
    }
    finishAnswer(message, figures, seconds(), body.continue_final_message);
    clearInterval(saving);
    this.transcript.changed(message);
    if (conversation === this.#current) reading.end(splitThinking(message).answer);
    announce(message.error ? "The answer failed" : "The answer is complete");
    // Who sees the end may close the page: it is kept by then.
    await this.#save(conversation);
    this.#running.delete(conversation.id);
    this.#showState();
  }

  #regenerate(message) {
    if (this.#running.has(this.#current.id)) return;
    this.#answer(this.#current, this.#setAside(message));
  }

  /** Changes a message. What was answered to the user's message before is answered anew. */
  #edit(message, text) {
    const conversation = this.#current;
    if (this.#running.has(conversation.id)) return;
    if (message.role === "user") {
      this.ask(text, { images: message.images, versions: this.#setAside(message) });
      return;
    }
    message.content = text;
    message.thinking = "";
    this.transcript.show(conversation, this.models);
    this.#save(conversation);
  }

  /** Takes a message and all that follow out of what is shown; returns the versions of the next one. */
  #setAside(message) {
    const { messages } = this.#current;
    const versions = setAside(messages, messages.indexOf(message));
    this.transcript.show(this.#current, this.models);
    return versions;
  }

  #switchVersion(message, step) {
    const conversation = this.#current;
    if (this.#running.has(conversation.id)) return;
    const shown = switchVersion(conversation.messages, message, step);
    if (shown === null) return;
    this.transcript.showVersion(conversation, shown, step);
    const { number, count } = versionOf(shown);
    announce(`Version ${number} of ${count}`);
    this.#save(conversation);
  }

  /** Adds the conversations of a chosen file. None that is here is changed. */
  async #import(input) {
    const state = byId("import-state");
    state.hidden = false;
    state.classList.remove("failed");
    try {
      const found = await readConversations(input.files[0]);
      let added = 0;
      for (const conversation of found) {
        const kept = this.#conversations.find(({ id }) => id === conversation.id);
        if (kept !== undefined && isSame(conversation, kept)) continue;
        // Another one with the same origin: both stay.
        if (kept !== undefined) conversation.id = newId();
        this.#conversations.push(conversation);
        await this.#save(conversation);
        added += 1;
      }
      this.#conversations.sort((one, other) => other.updated - one.updated);
      this.#showState();
      state.textContent = `${added} of ${found.length} imported.`;
      if (added < found.length) state.textContent += " The others were here already.";
    } catch (error) {
      if (!(error instanceof ImportError)) throw error;
      state.classList.add("failed");
      state.textContent = error.message;
    }
    // A second choice of this file is a change again.
    input.value = "";
  }

  async #rename(conversation) {
    const title = await askForName("Rename chat", conversation.title);
    if (!title) return;
    conversation.title = title;
    this.#showState();
    await this.#save(conversation);
  }

  async #remove(conversation) {
    const text = `“${conversation.title}” is removed from this browser. This cannot be undone.`;
    if (!await confirmed("Delete chat?", text, "Delete")) return;
    this.#running.get(conversation.id)?.abort();
    this.#conversations = this.#conversations.filter((one) => one !== conversation);
    await this.store.remove(conversation.id);
    if (conversation === this.#current) this.select(newConversation(lastSettings()));
    else this.#showState();
  }

  /** Writes a conversation, unless nothing was said in it or it was deleted. */
  async #save(conversation) {
    if (!this.#conversations.includes(conversation)) return;
    try {
      await this.store.put(conversation);
    } catch (error) {
      byId("notice").textContent = `The browser could not keep this conversation: ${error.message}`;
      byId("notice").hidden = false;
    }
  }

  #showState() {
    const busy = this.#running.has(this.#current.id);
    byId("title").textContent = this.#current.title || "New chat";
    this.sidebar.show(this.#conversations, this.#current, this.#running);
    const stopFocused = document.activeElement === byId("stop");
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    // The button that was pressed is gone: the focus goes to where the next message is written.
    if (!busy && stopFocused) byId("prompt").focus();
  }
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

function fileName(conversation) {
  return conversation.title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat";
}
