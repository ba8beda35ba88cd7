// Pods: what waits and what would have to change, what runs and how much of its promise it uses, what has ended.

import { count, h, memory, percent, plural, s, shortProduct, show, span } from "./dom.js";
import { get } from "./server.js";
import { useBar, useSentence } from "./bars.js";

const STATES = [["all", "All"], ["waiting", "Waiting"], ["placed", "Placed"], ["running", "Running"], ["done", "Done"]];
const PAGE = 40;
const MOST_SAMPLES = 240;
const ADVICE = { wait: "⏳", batch: "↘", setting: "⚙", share: "⇄", product: "▣", annotation: "✎", fits: "✓" };

export function open(main, place) {
  const tabs = h("div", { class: "tabs", role: "group", "aria-label": "State" });
  const list = h("div", { class: "podlist", role: "list", "aria-label": "Pods" });
  const found = h("p", { class: "found", role: "status" });
  const pager = h("div", { class: "pager" });
  const detail = h("aside", { class: "detail", "aria-label": "Pod", tabindex: "-1", hidden: true });
  const view = { refresh, moved, wake: () => {} };
  const samples = new Map(); // use of the pods that were looked at, since the page was opened
  let q = "";
  let offset = 0;
  let at = place();
  let closed = "";

  main.append(
    h("h1", { class: "unseen" }, "Pods"),
    h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, tabs,
      h("input", { type: "search", placeholder: "Search pods", "aria-label": "Search pods", maxlength: "253",
        oninput: (event) => { q = event.target.value; offset = 0; view.wake(); } })),
    h("div", { class: "split" }, h("section", { class: "left" }, found, list, pager), detail));

  pager.addEventListener("click", (event) => {
    const step = event.target.closest("button")?.dataset.step;
    if (step) { offset = Math.max(0, offset + Number(step)); view.wake(); }
  });
  main.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen()) location.hash = address("");
  });
  detail.addEventListener("click", (event) => {
    const text = event.target.closest("button.copy")?.dataset.text;
    if (text) navigator.clipboard?.writeText(text);
  });

  const state = () => (STATES.some(([name]) => name === at.query.get("state")) ? at.query.get("state") : "all");
  const chosen = () => (at.rest.length >= 2 ? `${at.rest[0]}/${at.rest.slice(1).join("/")}` : "");
  const address = (pod, to = state()) => `#pods${pod ? `/${encodeURI(pod)}` : ""}${to === "all" ? "" : `?state=${to}`}`;

  function moved(next) {
    if (next.query.get("state") !== at.query.get("state")) offset = 0;
    const before = chosen();
    at = next;
    if (chosen() !== before) { detail.hidden = !chosen(); show(detail); closed = before; }
  }

  async function refresh() {
    at = place();
    const answer = await get("pods", { state: state(), q, offset, limit: PAGE });
    if (answer.pods.length === 0 && offset > 0) offset = Math.max(0, Math.floor((answer.matching - 1) / PAGE) * PAGE);
    draw(answer);
    const pod = chosen();
    if (pod) await drawDetail(pod);
    else detail.hidden = true;
    return answer.status;
  }

  function draw(answer) {
    const counts = { ...answer.status.pods };
    counts.all = Object.values(counts).reduce((sum, each) => sum + each, 0);
    show(tabs, STATES.map(([name, word]) => h("a", { href: address("", name), class: `tab ${name}`, "data-key": name,
      "aria-current": name === state() ? "true" : null }, word, h("span", { class: "badge" }, count(counts[name] ?? 0)))));
    show(found, plural(answer.matching, "pod"), answer.matching > PAGE
      ? `, ${count(offset + 1)} to ${count(Math.min(answer.matching, offset + PAGE))}` : "");
    show(list, answer.pods.length ? answer.pods.map((pod) => line(pod, answer.status.now))
      : h("p", { class: "nothing" }, q ? "No pod has this in its name." : "No pods here now."));
    show(pager, answer.matching > PAGE ? [
      h("button", { type: "button", "data-step": -PAGE, disabled: offset === 0 }, "Previous"),
      h("button", { type: "button", "data-step": PAGE, disabled: offset + PAGE >= answer.matching }, "Next")] : null);
  }

  function line(pod, now) {
    return h("a", { role: "listitem", class: `pod ${pod.state}`, href: address(pod.pod), "data-key": `${pod.pod}:${pod.since ?? ""}`,
      "aria-current": pod.pod === chosen() ? "true" : null },
    h("span", { class: `state ${pod.state} ${pod.ending}` }, word(pod)),
    h("span", { class: "what" },
      h("span", { class: "name" }, pod.pod),
      h("span", { class: "dim" }, pod.task || (pod.level ? pod.level : "describes no task"))),
    pod.state === "waiting"
      ? h("span", { class: "why" }, pod.reasons.length ? `${pod.reasons[0].text} (${plural(pod.reasons[0].nodes, "node")}${
        pod.reasons.length > 1 ? `, and ${pod.reasons.length - 1} more` : ""})` : "It fits. The scheduler has not bound it yet.")
      : [h("span", { class: "where" }, pod.node
        ? [pod.node, pod.gpus.length ? ` GPU ${pod.gpus.join(", ")}` : "", h("span", { class: "dim" }, ` ${shortProduct(pod.product)}`)]
        : h("span", { class: "dim" }, shortProduct(pod.product))),
      h("span", { class: "much", title: useSentence(pod) }, useBar(pod),
        h("span", { class: "dim" }, amounts(pod), pod.since ? ` · ${pod.state === "done" ? `${span(now - pod.since)} ago` : span(now - pod.since)}` : ""))]);
  }

  async function drawDetail(pod) {
    let answer;
    try {
      answer = await get(`pods/${pod.split("/").map(encodeURIComponent).join("/")}`);
    } catch (error) {
      if (pod !== chosen()) return;
      detail.hidden = false;
      show(detail, close(), h("h2", null, pod), h("p", { class: "notice" }, error.message));
      return;
    }
    if (pod !== chosen()) return;
    const opening = detail.hidden || closed !== pod;
    detail.hidden = false;
    show(detail, close(), h("p", { class: "over" }, h("span", { class: `state ${answer.pod.state} ${answer.pod.ending}` }, word(answer.pod))),
      h("h2", null, answer.pod.pod), body(answer));
    if (opening) { closed = pod; detail.focus({ preventScroll: false }); }
  }

  const close = () => h("a", { class: "close", href: address(""), "aria-label": "Close" }, "×");

  function body(answer) {
    const { pod } = answer;
    return [
      h("p", { class: "dim" }, [pod.task, answer.owner, pod.devices ? `${pod.devices} × ${pod.resource}` : ""].filter(Boolean).join(" · ")),
      pod.state === "waiting" ? waits(answer) : runs(answer),
      Object.keys(answer.annotations).length ? h("details", null, h("summary", null, "Annotations"),
        h("pre", { tabindex: "0" }, Object.entries(answer.annotations).map(([key, value]) => `${key}: ${JSON.stringify(value)}\n`))) : null];
  }

  function waits(answer) {
    const { pod } = answer;
    const most = Math.max(1, ...pod.reasons.map((reason) => reason.nodes));
    return [
      answer.error ? h("p", { class: "notice" }, answer.error) : null,
      h("h3", null, "Why it waits"),
      pod.reasons.length ? h("ul", { class: "reasons" }, pod.reasons.map((reason) => h("li", null,
        h("span", { class: "meter" }, h("i", { style: { width: `${(100 * reason.nodes) / most}%` } })),
        h("b", null, count(reason.nodes)), h("span", null, reason.text))))
        : h("p", null, "Nothing keeps it. The scheduler has not bound it yet."),
      answer.advice.length ? [h("h3", null, "What would have to change"),
        h("ul", { class: "advice" }, answer.advice.map((each) => h("li", { class: each.kind },
          h("span", { class: "mark", "aria-hidden": "true" }, ADVICE[each.kind] ?? "·"),
          h("span", null, each.text, each.detail ? h("small", null, each.detail) : null))))] : null,
      needs(answer.needs_mib)];
  }

  function needs(byProduct) {
    const entries = Object.entries(byProduct).sort(([, one], [, other]) => one - other);
    if (!entries.length) return null;
    return [h("h3", null, "Need on each GPU"), h("table", null, h("tbody", null, entries.map(([name, mib]) =>
      h("tr", null, h("td", null, shortProduct(name)), h("td", { class: "number" }, memory(mib))))))];
  }

  function runs(answer) {
    const { pod, status } = answer;
    const seen = samples.get(pod.pod) ?? [];
    if (pod.used_mib !== null && pod.state !== "done" && seen.at(-1)?.[0] !== status.now) {
      seen.push([status.now, pod.used_mib]);
      samples.set(pod.pod, seen.slice(-MOST_SAMPLES));
    }
    const rows = [
      ["Node", pod.node && `${pod.node}${pod.gpus.length ? `, GPU ${pod.gpus.join(", ")}` : ""}`],
      ["GPU", pod.product && shortProduct(pod.product)],
      ["Uses now", pod.used_mib !== null && memory(pod.used_mib)],
      ["Peak so far", pod.peak_mib !== null && memory(pod.peak_mib)],
      ["Forecast", pod.median_mib !== null && memory(pod.median_mib)],
      ["Promised", pod.need_mib !== null && memory(pod.need_mib)],
      ["Of its promise", pod.need_mib && pod.peak_mib && percent(pod.peak_mib / pod.need_mib)],
      [pod.state === "done" ? "Ended" : "Since", pod.since && `${span(status.now - pod.since)}${pod.state === "done" ? " ago" : ""}`],
      ["Ending", pod.ending],
      ["Promise", pod.kept === null ? "" : pod.kept ? "was enough" : "was too small"],
    ].filter(([, value]) => value);
    return [useBar(pod), seen.length > 2 ? spark(seen, pod) : null,
      h("dl", null, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
      pod.used_mib === null && pod.state !== "done" ? h("p", { class: "dim" }, "Telemetry has not shown it yet.") : null];
  }

  return view;
}

const word = (pod) => (pod.state === "done" ? pod.ending || "done" : pod.state);

function amounts(pod) {
  if (pod.need_mib === null) return "no forecast";
  const peak = pod.used_mib ?? pod.peak_mib;
  return peak === null ? memory(pod.need_mib) : `${memory(peak)} of ${memory(pod.need_mib)}`;
}

function spark(seen, pod) {
  const [width, height] = [320, 72];
  const top = Math.max(pod.need_mib ?? 0, ...seen.map(([, mib]) => mib), 1) * 1.08;
  const [from, to] = [seen[0][0], Math.max(seen.at(-1)[0], seen[0][0] + 30)];
  const x = (time) => (((time - from) / (to - from)) * width).toFixed(1);
  const y = (mib) => (height - (mib / top) * height).toFixed(1);
  const level = (mib, kind) => s("line", { class: kind, x1: 0, x2: width, y1: y(mib), y2: y(mib) });
  return h("figure", { class: "spark" }, s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Use over the last ${span(to - from)}` },
  pod.need_mib ? level(pod.need_mib, "bound") : null, pod.median_mib ? level(pod.median_mib, "median") : null,
  s("polyline", { class: "line", points: seen.map(([time, mib]) => `${x(time)},${y(mib)}`).join(" ") })),
  h("figcaption", { class: "dim" }, `use since this page was opened; lines: promise and forecast`));
}
