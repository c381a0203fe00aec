// Starts the page: the two views, the model, the key.

import { forgetKey, hasKey, onMissingKey } from "./api.js";
import { Attachments } from "./chat/attachments.js";
import { Chat } from "./chat/chat.js";
import { askForKey } from "./dialogs.js";
import { byId, fillIcons } from "./dom.js";
import { EngineView } from "./engine/view.js";
import { Models } from "./models.js";
import { startShortcuts } from "./shortcuts.js";
import { Store } from "./store.js";
import { startTheme } from "./theme.js";

const COARSE = matchMedia("(pointer: coarse)");

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = text === "";
}

/** Shows the view that the address names. */
function startViews(engine) {
  const show = () => {
    // The link past the bar leads to the view that is there.
    if (location.hash === "#main") return;
    const name = location.hash === "#engine" ? "engine" : "chat";
    for (const each of ["chat", "engine"]) {
      byId(each).hidden = each !== name;
      if (each === name) byId(`${each}-link`).setAttribute("aria-current", "page");
      else byId(`${each}-link`).removeAttribute("aria-current");
    }
    document.body.dataset.view = name;
    document.title = name === "engine" ? "Engine – rocmforge" : "rocmforge";
    engine.show(name === "engine");
  };
  addEventListener("hashchange", show);
  show();
}

function startComposer(chat, models, attachments) {
  const area = byId("prompt");
  const fit = () => {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 240)}px`;
  };
  const submit = () => {
    if (attachments.isReading) return;
    if (!chat.ask(attachments.withFiles(area.value), { images: attachments.images })) return;
    area.value = "";
    attachments.clear();
    fit();
    // The answer waits for the same load.
    models.load(false);
  };
  area.addEventListener("input", fit);
  area.addEventListener("keydown", (event) => {
    // On a touch screen there is no Shift to begin a line with; while a word is composed, Enter ends the word.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || COARSE.matches) return;
    event.preventDefault();
    submit();
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
}

/** Says what can be attached; every model reads text files. */
function showAttach(sees) {
  const label = sees ? "Attach images or text files" : "Attach text files";
  for (const name of ["aria-label", "title"]) byId("attach").setAttribute(name, label);
}

async function start() {
  fillIcons();
  startTheme();
  onMissingKey(askForKey);
  const store = new Store();
  const kept = await store.open();
  const models = new Models(() => {
    chat.modelChanged();
    showAttach(models.sees);
  }, notice);
  const chat = new Chat(store, models);
  startViews(new EngineView(models));
  startComposer(chat, models, new Attachments(() => models.sees, notice));
  await chat.start();
  startShortcuts({ search: () => chat.search(), newChat: () => chat.newChat() });
  if (!kept) notice("This browser keeps no data for this page: conversations last until it is closed.");
  byId("forget-key").addEventListener("click", () => {
    forgetKey();
    location.reload();
  });
  try {
    await models.list();
    chat.modelChanged();
    showAttach(models.sees);
  } catch (error) {
    notice(`The models could not be listed. ${error.message}`);
  }
  byId("forget-key").hidden = !hasKey();
  document.body.dataset.ready = "true";
}

start();
