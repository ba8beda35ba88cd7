// A GPU as a bar: what pods use, what else they were promised, unmanaged memory, holds, and what is free.

import { h, memory, percent } from "./dom.js";

export const PARTS = [
  ["used", "used now", "what pods use of their promises"],
  ["promised", "promised", "promised, and not in use now"],
  ["unmanaged", "unmanaged", "in use, and nobody's promise"],
  ["held", "held", "held for pods that are being placed"],
  ["free", "free", "left to promise"],
];

/** The parts of a bar in MiB. A pod may use more than it was promised: then nothing is left of its promise. */
export function parts(gpu) {
  if (gpu.whole && gpu.promised_mib === 0) return { whole: gpu.size_mib };
  const used = Math.min(gpu.used_mib, gpu.size_mib);
  const promised = Math.max(0, gpu.promised_mib - used);
  const held = gpu.held_mib ?? 0;
  const free = Math.max(0, gpu.size_mib - used - promised - gpu.unmanaged_mib - held);
  return { used, promised, unmanaged: gpu.unmanaged_mib, held, free };
}

export function bar(gpu, properties = {}) {
  const size = Math.max(1, gpu.size_mib);
  return h("span", { ...properties, class: `bar ${properties.class ?? ""}` },
    Object.entries(parts(gpu)).filter(([name, mib]) => name !== "free" && mib > 0).map(([name, mib]) =>
      h("i", { class: `part ${name}`, style: { width: `${Math.min(100, (100 * mib) / size).toFixed(2)}%` } })));
}

export function sentence(gpu) {
  const found = parts(gpu);
  if (found.whole) return `${memory(gpu.size_mib)}, taken by a pod that describes no task`;
  const said = PARTS.filter(([name]) => found[name] > 0).map(([name, word]) => `${memory(found[name])} ${word}`);
  return `${memory(gpu.size_mib)}: ${said.join(", ")}`;
}

export const legend = () => h("ul", { class: "legend", "aria-label": "Legend" }, PARTS.map(([name, word, meaning]) =>
  h("li", { title: meaning }, h("i", { class: `key ${name}` }), word)));

/** A pod's own bar: use so far, forecast and promise, on a scale of the promise. */
export function useBar(pod) {
  const need = pod.need_mib ?? 0;
  const peak = pod.peak_mib ?? 0;
  const top = Math.max(need, peak, pod.median_mib ?? 0, 1) * 1.04;
  const at = (mib) => `${((100 * mib) / top).toFixed(2)}%`;
  const over = need > 0 && peak > need;
  return h("span", { class: `use ${over ? "over" : ""}`, role: "img", "aria-label": useSentence(pod) },
    h("i", { class: "promise", style: { width: at(need) } }),
    h("i", { class: "peak", style: { width: at(peak) } }),
    pod.used_mib === null ? null : h("i", { class: "now", style: { width: at(pod.used_mib) } }),
    pod.median_mib ? h("i", { class: "median", style: { left: at(pod.median_mib) } }) : null);
}

export function useSentence(pod) {
  const said = [];
  if (pod.used_mib !== null) said.push(`uses ${memory(pod.used_mib)}`);
  if (pod.peak_mib !== null) said.push(`peak ${memory(pod.peak_mib)}`);
  if (pod.median_mib !== null) said.push(`forecast ${memory(pod.median_mib)}`);
  if (pod.need_mib !== null) {
    const share = pod.peak_mib ? ` (${percent(pod.peak_mib / pod.need_mib)} of it used)` : "";
    said.push(`promised ${memory(pod.need_mib)}${share}`);
  }
  return said.join(", ") || "nothing is known of its memory";
}
