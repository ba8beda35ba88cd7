// Forecast: the answer of `vramcast forecast`, drawn. The figures are those of POST /forecast and POST /sweep.

import { count, h, memory, percent, shortProduct, show } from "./dom.js";
import { get, post } from "./server.js";
import { plot, ticks } from "./charts.js";

const PREFIX = "vramcast.dev/";
const MIB = 1 << 20;
export const PRECISIONS = ["fp32", "fp16", "bf16", "amp-fp16", "amp-bf16"];
export const OPTIMIZERS = ["adamw", "adam", "sgd", "sgd-momentum", "adafactor", "adam8bit"];
const METHODS = {
  full: ["All weights", {}],
  lora: ["LoRA", { "lora-rank": "16", task: "fine-tuning" }],
  qlora: ["QLoRA", { "lora-rank": "16", quantization: "nf4", task: "fine-tuning" }],
  inference: ["Inference", { task: "inference" }],
};
const RISKS = ["0.1", "0.05", "0.01", "0.001"];
const START = { model: "timm/resnet50", batch: "64", length: "", precision: "amp-bf16", optimizer: "adamw", method: "full",
  checkpointing: "", share: "true", risk: "0.05", sweep: "batch-size" };
const PAUSE = 350;

export function annotations(form) {
  const named = form.model.trim();
  // What `vramcast profile` prints can be pasted instead of a name. It knows the precision.
  if (/^v\d+:/.test(named)) {
    const own = { profile: named, "batch-size": form.batch, ...(form.length && { "sequence-length": form.length }),
      ...(form.risk && { "max-oom-risk": form.risk }), ...(form.share && { share: "true" }) };
    return Object.fromEntries(Object.entries(own).map(([key, value]) => [PREFIX + key, value]));
  }
  const found = { model: named, "batch-size": form.batch, precision: form.precision };
  if (form.length) found["sequence-length"] = form.length;
  if (form.method !== "inference") found.optimizer = form.optimizer;
  if (form.checkpointing) found["gradient-checkpointing"] = "true";
  if (form.risk) found["max-oom-risk"] = form.risk;
  if (form.share) found.share = "true";
  Object.assign(found, METHODS[form.method][1]);
  return Object.fromEntries(Object.entries(found).map(([key, value]) => [PREFIX + key, value]));
}

const manifest = (form) => ({
  apiVersion: "v1", kind: "Pod", metadata: { name: "forecast", annotations: annotations(form) },
  // A pod that does not share asks for a device. Which one does not change its forecast.
  spec: { containers: [{ name: "main", resources: { limits: form.share ? {} : { "nvidia.com/gpu": "1" } } }] },
});

export function open(main) {
  const form = { ...START };
  const names = h("datalist", { id: "names" });
  const about = h("p", { class: "dim", id: "about" });
  const result = h("section", { class: "result", "aria-label": "Forecast", "aria-live": "polite" });
  const view = { refresh, wake: () => {} };
  let wanted = 1;
  let done = 0;
  let timer = 0;
  let searching = null;

  const choice = (name, options) => h("select", { id: name, name }, options.map(([value, text]) =>
    h("option", { value, selected: form[name] === value }, text)));
  const field = (name, label, control) => h("label", { for: name }, h("span", null, label), control);
  const number = (name, least, hint) => h("input", { id: name, name, type: "number", min: least, max: "10000000", value: form[name],
    placeholder: hint, inputmode: "numeric" });
  const fields = h("form", { class: "form", "aria-label": "Task", onsubmit: (event) => event.preventDefault() },
    field("model", "Model", h("input", { id: "model", name: "model", list: "names", value: form.model, autocomplete: "off",
      spellcheck: "false", maxlength: "260000", "aria-describedby": "about" })), names, about,
    h("div", { class: "pair" }, field("batch", "Batch size", number("batch", "1")),
      field("length", "Sequence length", number("length", "1", "of the model"))),
    h("div", { class: "pair" }, field("precision", "Precision", choice("precision", PRECISIONS.map((each) => [each, each]))),
      field("method", "Method", choice("method", Object.entries(METHODS).map(([name, [text]]) => [name, text])))),
    h("div", { class: "pair" }, field("optimizer", "Optimizer", choice("optimizer", OPTIMIZERS.map((each) => [each, each]))),
      field("risk", "Risk of OOM", choice("risk", RISKS.map((each) => [each, percent(Number(each), each === "0.001" ? 1 : 0)])))),
    h("label", { class: "check", for: "checkpointing" }, h("input", { type: "checkbox", id: "checkpointing", name: "checkpointing" }),
      h("span", null, "Gradient checkpointing")),
    h("label", { class: "check", for: "share" }, h("input", { type: "checkbox", id: "share", name: "share", checked: true }),
      h("span", null, "May share its GPU")),
    field("sweep", "Sweep over", choice("sweep", [["batch-size", "batch size"], ["sequence-length", "sequence length"]])));
  main.append(h("h1", { class: "unseen" }, "Forecast"), h("div", { class: "split forecast" }, fields, result));

  fields.addEventListener("input", (event) => {
    const { name, value, type, checked } = event.target;
    form[name] = type === "checkbox" ? (checked ? "true" : "") : value;
    if (name === "model") suggest(value);
    clearTimeout(timer);
    timer = setTimeout(() => { wanted += 1; view.wake(); }, PAUSE);
  });
  result.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    await navigator.clipboard?.writeText(button.dataset.text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  async function suggest(text) {
    searching?.abort();
    searching = new AbortController();
    try {
      const found = await get("models", { q: text }, searching.signal);
      show(names, found.models.map((line) => h("option", { value: line.model, "data-key": line.model },
        `${count(Math.round(line.parameters / 1e5) / 10)} M parameters`)));
      const own = found.models.find((line) => line.model === text);
      show(about, own ? `${own.architecture}, ${count(Math.round(own.parameters / 1e5) / 10)} M parameters, ${
        own.input_size ? own.input_size.join("×") : `${count(own.sequence_length)} tokens`}`
        : `${count(found.matching)} of ${count(found.known)} known models have this in their name`);
    } catch { /* typed on, or the service is away: the header says so */ }
  }

  /** Asks only if the form has changed since the last answer. */
  async function refresh() {
    if (done === wanted) return null;
    const asked = wanted;
    if (done === 0) await suggest(form.model);
    try {
      if (!result.hasChildNodes()) show(result, h("p", { class: "dim" }, "Forecasting …"));
      const task = manifest(form);
      const over = `sweep?over=${encodeURIComponent(range(form))}`;
      const answer = await post("forecast", task);
      const { step } = await post("step", task).catch(() => ({ step: null }));
      if (asked === wanted) draw(answer, { error: "Forecasting …" }, step);
      // The curve takes a second. The largest values take dozens of forecasts, so they follow.
      for (const path of [`${over}&largest=false`, over]) {
        if (asked !== wanted) break;
        const sweep = await post(path, task).catch((error) => ({ error: error.message }));
        if (asked === wanted) draw(answer, sweep, step);
      }
    } catch (error) {
      if (error.message.startsWith("The service")) throw error;
      if (asked === wanted) show(result, h("p", { class: "notice" }, error.message));
    }
    done = asked;
    return null;
  }

  function draw(answer, sweep, step) {
    const worst = answer.forecasts.reduce((one, other) => (other.need_mib > one.need_mib ? other : one));
    const text = Object.entries(annotations(form)).map(([key, value]) => `${key}: ${JSON.stringify(value)}`).join("\n");
    show(result,
      h("div", { class: "headline" }, h("b", null, memory(worst.need_mib)),
        h("span", null, `per GPU is enough for ${percent(1 - worst.risk, worst.risk < 0.01 ? 1 : 0)} of such runs; the median is ${
          memory(worst.median_bytes / MIB)}`)),
      h("table", { class: "wide" }, h("caption", null, "On each GPU"),
        h("thead", null, h("tr", null, ["GPU", "usable", "median", "needed", ""].map((name, at) =>
          h("th", { scope: "col", class: at ? "number" : "" }, name)))),
        h("tbody", null, answer.forecasts.map((each) => h("tr", { "data-key": each.product, "data-product": each.product },
          h("th", { scope: "row" }, shortProduct(each.product)),
          h("td", { class: "number dim" }, each.usable_mib === null ? "–" : memory(each.usable_mib)),
          h("td", { class: "number" }, memory(each.median_bytes / MIB)),
          h("td", { class: "number", "data-need": each.need_mib }, memory(each.need_mib)),
          h("td", null, verdict(each.holds_it)))))),
      utilization(worst),
      h("h3", null, "As it grows"), sweep.error ? h("p", { class: "dim" }, sweep.error) : curve(sweep, form, answer.forecasts, result.clientWidth - 48),
      step ? [h("h3", null, "Over the recorded steps"), stepCurve(step, result.clientWidth - 48)] : null,
      partsOf(worst),
      h("h3", null, "Annotations"),
      h("div", { class: "code" }, h("pre", { tabindex: "0" }, text),
        h("button", { type: "button", class: "copy", "data-text": text }, "Copy")),
      worst.assumptions.length ? h("p", { class: "dim" }, `Assumed: ${worst.assumptions.join("; ")}.`) : null,
      h("p", { class: "dim" }, `${worst.source}, ${worst.model_version}`));
  }

  return view;
}

function utilization(forecast) {
  const known = ["gpu_util", "sm_active", "sm_occupancy"].filter((counter) => forecast.utilization[counter] !== null);
  return known.length ? h("p", { class: "dim" }, `Utilization of a ${shortProduct(forecast.product)} of its own: ${
    known.map((counter) => `${counter} ${percent(forecast.utilization[counter])}`).join(", ")}.`) : null;
}

const verdict = (holds) => (holds === null ? h("span", { class: "dim" }, "size unknown")
  : holds ? h("span", { class: "yes" }, "holds it") : h("span", { class: "no" }, "too small"));

function range(form) {
  if (form.sweep === "sequence-length") return `sequence-length=128..${Math.max(4096, 2 * Number(form.length || 0))}`;
  return `batch-size=1..${Math.max(64, 4 * Math.ceil(Number(form.batch) || 1))}`;
}

function partsOf(forecast) {
  const known = forecast.parts.filter((part) => part.size_bytes >= MIB);
  const whole = Math.max(1, known.reduce((sum, part) => sum + part.size_bytes, 0));
  return [h("h3", null, `Where it goes, on ${shortProduct(forecast.product)}`),
    h("div", { class: "stack", "aria-hidden": "true" }, known.map((part, at) => h("i", { class: `tone${at % 8}`,
      style: { width: `${(100 * part.size_bytes) / whole}%` }, title: part.name }))),
    h("ul", { class: "parts" }, known.map((part, at) => h("li", null, h("i", { class: `key tone${at % 8}` }),
      h("span", null, part.name, h("small", null, part.because)), h("b", null, memory(part.size_bytes / MIB)))))];
}

function curve(sweep, form, forecasts, width) {
  const points = sweep.points.map((point) => [point.value, point.median_bytes / MIB / 1024, point.bound_bytes / MIB / 1024]);
  const highest = Math.max(...points.map(([, , bound]) => bound)) * 1.08;
  const known = forecasts.filter((each) => each.usable_mib !== null);
  const largest = new Map(sweep.largest.map((each) => [each.product, each.value]));
  const levels = [...new Map(known.map((each) => [each.usable_mib, each])).values()].sort((one, other) => one.usable_mib - other.usable_mib);
  const above = levels.find((each) => each.usable_mib / 1024 > highest);
  const top = above && above.usable_mib / 1024 < 1.6 * highest ? (above.usable_mib / 1024) * 1.06 : highest;
  const last = points.at(-1)[0];
  const drawn = plot({
    width: Math.max(320, Math.min(840, width)),
    height: 320,
    label: `Memory over ${sweep.sweep}, and the memory of each GPU. The table below has the same values.`,
    x: { from: 0, to: last, ticks: ticks(last, 6), text: (value) => count(value), name: sweep.sweep },
    y: { from: 0, to: top, ticks: ticks(top, 5), text: (value) => count(value), name: "GiB" },
  });
  drawn.area(points.map(([x, low]) => [x, low]), points.map(([x, , high]) => [x, high]), "between");
  drawn.line(points.map(([x, low]) => [x, low]), "median");
  drawn.line(points.map(([x, , high]) => [x, high]), "bound");
  for (const each of levels.filter((one) => one.usable_mib / 1024 <= top)) {
    drawn.level(each.usable_mib / 1024, shortProduct(each.product), "gpu");
    const fits = largest.get(each.product) ?? null;
    if (fits !== null && fits <= last) drawn.dot(fits, each.usable_mib / 1024, "largest", `${fits} fits`);
  }
  const own = Number(sweep.sweep === "batch-size" ? form.batch : form.length);
  if (own && own <= last) drawn.line([[own, 0], [own, top]], "own");
  return [h("figure", null, drawn.draw(), h("figcaption", { class: "keys" },
    h("span", null, h("i", { class: "key bound" }), `needed at risk ${percent(sweep.risk, sweep.risk < 0.01 ? 1 : 0)}`),
    h("span", null, h("i", { class: "key median" }), "median"), h("span", null, h("i", { class: "key gpu" }), "a GPU's memory"), h("span", null, `curves: on ${shortProduct(sweep.product)}`))),
  sweep.largest.length === 0 ? h("p", { class: "dim" }, "Looking for the largest value that fits …")
    : h("table", { class: "wide" }, h("caption", null, `Largest ${sweep.sweep} that fits`),
    h("tbody", null, sweep.largest.map((each) => h("tr", { "data-key": each.product },
      h("th", { scope: "row" }, shortProduct(each.product)),
      h("td", { class: "number" }, each.value === null ? h("span", { class: "no" }, "none") : h("b", null, count(each.value))),
      h("td", { class: "number dim" }, each.bound_bytes === null ? "" : `needs ${memory(each.bound_bytes / MIB)}`)))))];
}

/** Roles stacked, and what the allocator has reserved around them. */
function stepCurve(step, width) {
  const giga = (bytes) => bytes / MIB / 1024;
  const top = giga(Math.max(...step.reserved_bytes)) * 1.06;
  const drawn = plot({
    width: Math.max(320, Math.min(840, width)), height: 280,
    label: "Memory over the recorded steps, by what it is for",
    x: { from: 0, to: step.total_events, ticks: step.phases.filter(({ phase }) => phase === "step").map(({ event }) => event),
      text: (event) => `step ${1 + step.phases.filter(({ phase, event: at }) => phase === "step" && at < event).length}`, name: "" },
    y: { from: 0, to: top, ticks: ticks(top, 4), text: (value) => count(value), name: "GiB" },
  });
  const roles = Object.entries(step.by_role_bytes);
  let below = step.events.map((event) => [event, 0]);
  roles.forEach(([, bytes], at) => {
    const above = below.map(([event, sum], point) => [event, sum + giga(bytes[point])]);
    drawn.area(below, above, `role tone${at % 8}`);
    below = above;
  });
  drawn.line(step.events.map((event, point) => [event, giga(step.reserved_bytes[point])]), "bound");
  return h("figure", null, drawn.draw(), h("figcaption", { class: "keys" },
    roles.map(([name], at) => h("span", null, h("i", { class: `key tone${at % 8}` }), name)),
    h("span", null, h("i", { class: "key bound" }), "reserved by the allocator")));
}
