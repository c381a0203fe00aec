// Keys that work from anywhere in the page: Ctrl+K searches, Ctrl+Shift+O begins a chat.

import { byId } from "./dom.js";

const MAC = /Mac|iP/.test(navigator.platform);

/**
 * Makes the keys work, and tells them at the elements that do the same.
 *
 * @param {{search: function(): void, newChat: function(): void}} actions
 */
export function startShortcuts({ search, newChat }) {
  tell(byId("search"), "Search", "K");
  tell(byId("new"), "New chat", "Shift+O");
  document.addEventListener("keydown", (event) => {
    // A dialog waits for its own answer.
    if (event.altKey || !(MAC ? event.metaKey : event.ctrlKey) || document.querySelector("dialog[open]")) return;
    const key = event.key.toLowerCase();
    const action = key === "k" && !event.shiftKey ? search : key === "o" && event.shiftKey ? newChat : null;
    if (action === null) return;
    event.preventDefault();
    inChat(action);
  });
}

function tell(element, label, key) {
  element.title = `${label} (${MAC ? "⌘" : "Ctrl+"}${key})`;
  element.setAttribute("aria-keyshortcuts", `${MAC ? "Meta" : "Control"}+${key}`);
}

/** Does something in the chat's view, which is shown first. */
function inChat(action) {
  if (!byId("chat").hidden) {
    action();
    return;
  }
  // The view is shown by an earlier listener of the same event.
  addEventListener("hashchange", action, { once: true });
  location.hash = "#chat";
}
