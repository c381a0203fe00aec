// Makes elements. Texts become text nodes: nothing here or elsewhere in the page makes HTML of a string.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element.
 *
 * @param {string} tag its name
 * @param {Object} [props] `on…` are listeners, `dataset` is an object, booleans are attributes that are there or not
 * @param {...(Node|string|null|undefined)} children
 * @returns {HTMLElement}
 */
export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** An element of SVG. */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** The element of the page with this id. */
export function byId(id) {
  return document.getElementById(id);
}

// Outlines on a grid of 24 units.
const ICONS = {
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7l-8.3 8.3a1.7 1.7 0 0 1-2.4-2.4L14.5 7",
  close: "M7 7l10 10M17 7L7 17",
  check: "M5 13l4 4L19 7",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  download: "M12 4v11m-5-5l5 5 5-5M5 20h14",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  menu: "M4 7h16M4 12h16M4 17h16",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z",
  next: "M10 6l6 6-6 6",
  play: "M8 5l11 7-11 7z",
  plus: "M12 5v14M5 12h14",
  auto: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  previous: "M14 6l-6 6 6 6",
  redo: "M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7",
  send: "M12 20V5m-6 6l6-6 6 6",
  sliders: "M4 7h10M18 7h2M4 17h2M10 17h10M14 4v6M6 14v6",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2m0 16v2M4.9 4.9l1.4 1.4m11.4 11.4l1.4 1.4"
    + "M2 12h2m16 0h2M4.9 19.1l1.4-1.4m11.4-11.4l1.4-1.4",
  upload: "M12 15V4m-5 5l5-5 5 5M5 20h14",
  trash: "M4 7h16M10 11v6m4-6v6M6 7l1 13h10l1-13M9 7V4h6v3",
};

/** A picture that says nothing by itself: what it stands on has a label. */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** A button that shows a picture alone. */
export function iconButton(name, label, onclick, props = {}) {
  return el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...props },
    icon(name));
}

/** Puts the pictures into the buttons of the HTML that ask for one. */
export function fillIcons() {
  for (const node of document.querySelectorAll("[data-icon]")) node.prepend(icon(node.dataset.icon));
}
