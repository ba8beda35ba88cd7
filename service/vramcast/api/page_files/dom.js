// Building blocks. Everything that comes from the cluster becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";
// Control characters but the line feed, and those that change the direction of text.
const UNSEEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export const clean = (text) => String(text).replace(UNSEEN, "\ufffd");

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, set] of Object.entries(value)) node.style.setProperty(key, set);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : clean(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : clean(child));
  }
  return node;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** Replaces the children only if they differ, so that focus, selection and open details survive an update. */
export function show(parent, ...children) {
  const next = h("div", null, ...children);
  morph(parent, next);
  return parent;
}

function morph(old, next) {
  const after = [...next.childNodes];
  const wanted = new Set(after.map(keyOf).filter((key) => key !== undefined));
  const known = new Map();
  for (const child of [...old.childNodes]) {
    const key = keyOf(child);
    if (key === undefined) continue;
    if (wanted.has(key)) known.set(key, child);
    else child.remove();
  }
  let at = old.firstChild;
  for (const node of after) {
    const key = keyOf(node);
    const same = key === undefined ? (at && keyOf(at) === undefined ? at : null) : known.get(key);
    if (!same || !alike(same, node)) {
      old.insertBefore(node, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    if (same.nodeType === Node.TEXT_NODE) {
      if (same.data !== node.data) same.data = node.data;
    } else if (!same.isEqualNode(node)) update(same, node);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

const keyOf = (node) => node.dataset?.key;
const alike = (one, other) =>
  one.nodeType === other.nodeType && one.nodeName === other.nodeName && one.id === other.id;

function update(known, node) {
  for (const { name } of [...known.attributes]) {
    if (!node.hasAttribute(name) && name !== "open") known.removeAttribute(name);
  }
  for (const { name, value } of [...node.attributes]) {
    if (known.getAttribute(name) === value) continue;
    if (name === "style") known.style.cssText = node.style.cssText; // the page's policy forbids the attribute
    else known.setAttribute(name, value);
  }
  morph(known, node);
}

// --- words and numbers

export const gib = (mib, digits = 1) => `${(mib / 1024).toLocaleString("en", {
  minimumFractionDigits: mib >= 102400 ? 0 : digits, maximumFractionDigits: mib >= 102400 ? 0 : digits,
})} GiB`;
export const memory = (mib) => (mib >= 1 << 20 ? `${(mib / (1 << 20)).toFixed(1)} TiB` : mib < 1024 ? `${Math.round(mib)} MiB` : gib(mib));
export const percent = (share, digits = 0) => (Number.isFinite(share) ? `${(100 * share).toFixed(digits)} %` : "–");
export const count = (number) => number.toLocaleString("en");
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export function span(seconds) {
  const at = Math.max(0, Math.round(seconds)); // a clock that is behind shows no negative times
  if (at < 60) return `${at} s`;
  if (at < 3600) return `${Math.floor(at / 60)} min`;
  if (at < 48 * 3600) return `${Math.floor(at / 3600)} h ${Math.floor((at % 3600) / 60)} min`;
  return `${Math.floor(at / 86400)} days`;
}

const OMITTED = ["NVIDIA-", "Tesla-", "GeForce-", "-SXM2", "-SXM3", "-SXM4", "-PCIE", "-PCIe", "-HBM3"];
export const shortProduct = (name) => OMITTED.reduce((text, part) => text.replace(part, ""), name) || "unknown GPU";
