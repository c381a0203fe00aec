// Images and text files for the next message: chosen, pasted or dropped, shown as small pictures, read here alone.

import { announce } from "../announce.js";
import { byId, el, iconButton } from "../dom.js";

// The longer side of an image that is sent; the server's models look at less.
const MAX_SIDE = 2048;
// A file of one of the server's formats that is no larger is sent as it is.
const MAX_BYTES = 4 << 20;
const FORMATS = new Set(["image/png", "image/jpeg", "image/webp", "image/gif"]);
const MAX_IMAGES = 16;
const MAX_TEXT_BYTES = 1 << 20;

/** What the user has attached. */
export class Attachments {
  #items = [];
  #reading = 0;

  /**
   * @param {function(): boolean} sees whether the chosen model may read images
   * @param {function(string): void} notice tells the user what went wrong
   */
  constructor(sees, notice) {
    this.sees = sees;
    this.notice = notice;
    this.list = byId("attachments");
    const input = byId("attach-file");
    byId("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      this.add([...input.files]);
      // A second choice of this file is a change again.
      input.value = "";
    });
    byId("prompt").addEventListener("paste", (event) => {
      const { files, types } = event.clipboardData;
      // Programs for tables and texts put a picture beside the text.
      if (files.length === 0 || types.includes("text/plain")) return;
      event.preventDefault();
      this.add([...files]);
    });
    this.#takeDrops(byId("conversation"));
  }

  /** Whether a file is being read: the message would lack it. */
  get isReading() {
    return this.#reading > 0;
  }

  /** The images, as data: URLs. */
  get images() {
    return this.#items.filter(({ image }) => image !== undefined).map(({ image }) => image);
  }

  /** A text with the text files behind it, each in a block with its name. */
  withFiles(text) {
    const blocks = this.#items.filter((item) => item.text !== undefined).map(block);
    return [text.trim(), ...blocks].filter((part) => part !== "").join("\n\n");
  }

  /** Forgets everything. */
  clear() {
    this.#items = [];
    this.#show();
  }

  /** Reads files, and says of each that cannot be attached why. */
  async add(files) {
    this.#reading += 1;
    this.notice("");
    try {
      for (const file of files) {
        try {
          this.#items.push(await this.#read(file));
          announce(`${file.name} is attached`);
        } catch (error) {
          if (!(error instanceof AttachError)) throw error;
          this.notice(error.message);
        }
        this.#show();
      }
    } finally {
      this.#reading -= 1;
    }
  }

  async #read(file) {
    const { name } = file;
    if (!file.type.startsWith("image/") || file.type === "image/svg+xml") return { name, text: await readText(file) };
    if (!this.sees()) throw new AttachError(`${name}: the chosen model accepts only text.`);
    if (this.images.length >= MAX_IMAGES) throw new AttachError(`${name}: a message has at most ${MAX_IMAGES} images.`);
    return { name, image: await readImage(file) };
  }

  #show() {
    this.list.hidden = this.#items.length === 0;
    this.list.replaceChildren(...this.#items.map((item) => {
      const remove = iconButton("close", `Remove ${item.name}`, () => {
        this.#items = this.#items.filter((one) => one !== item);
        this.#show();
        byId("prompt").focus();
      });
      const shown = item.image === undefined ? el("span", { class: "file-name" }, item.name)
        : el("img", { src: item.image, alt: item.name });
      return el("li", { title: item.name }, shown, remove);
    }));
  }

  #takeDrops(area) {
    const hasFiles = (event) => event.dataTransfer.types.includes("Files");
    area.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      area.classList.add("dropping");
    });
    area.addEventListener("dragleave", (event) => {
      if (!area.contains(event.relatedTarget)) area.classList.remove("dropping");
    });
    area.addEventListener("drop", (event) => {
      area.classList.remove("dropping");
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
      byId("prompt").focus();
    });
  }
}

/** A file that cannot be attached; the message says why. */
class AttachError extends Error {}

/** A text file as a block of Markdown, whose fence is longer than any in it. */
function block({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  const [, language = ""] = /\.(\w+)$/.exec(name) ?? [];
  return `${name}:\n${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}

async function readText(file) {
  if (file.size > MAX_TEXT_BYTES) {
    const size = Math.ceil(file.size / 1024);
    throw new AttachError(`${file.name} has ${size} KiB; at most 1,024 KiB of text can be attached.`);
  }
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    text = "\0";
  }
  if (text.includes("\0")) throw new AttachError(`${file.name} is neither an image nor a text in UTF-8.`);
  return text.replaceAll("\r\n", "\n");
}

/** An image as a data: URL, made smaller if it is large. */
async function readImage(file) {
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new AttachError(`${file.name}: this browser cannot read the image.`);
  }
  const { width, height } = picture;
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  if (scale === 1 && FORMATS.has(file.type) && file.size <= MAX_BYTES) return dataUrl(file);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  // JPEG has no transparency: what shows through is white, as for the model.
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  const exact = file.type === "image/jpeg" ? null : canvas.toDataURL("image/png");
  return exact !== null && exact.length <= MAX_BYTES ? exact : canvas.toDataURL("image/jpeg", 0.92);
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new AttachError(`${file.name}: it cannot be read.`));
    reader.readAsDataURL(file);
  });
}
