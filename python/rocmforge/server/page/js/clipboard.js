// Puts texts into the clipboard.

import { el } from "./dom.js";

/** Puts a text into the clipboard, on plain HTTP too, where the browser's own way is closed. */
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return;
    } catch {
      // The user may have forbidden it; the old way may still be open.
    }
  }
  const area = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
