// The frame: which view is shown, and whether its figures are live.

import { clean, h, plural, show, span } from "./dom.js";
import { repeat } from "./server.js";
import * as cluster from "./cluster.js";
import * as pods from "./pods.js";
import * as forecast from "./forecast.js";
import * as accuracy from "./accuracy.js";

const VIEWS = { cluster, pods, forecast, accuracy };
const TITLES = { cluster: "Cluster", pods: "Pods", forecast: "Forecast", accuracy: "Accuracy" };
const main = document.getElementById("main");
const live = document.getElementById("live");
const views = document.getElementById("views");

let current = null;
let shown = "";
let status = null;

/** `#pods/ns/name?state=waiting` is the view pods, with the rest as its place. */
export function place() {
  const [path, query = ""] = decodeURI(location.hash.slice(1)).split("?");
  const [name, ...rest] = path.split("/");
  return { view: name in VIEWS ? name : "cluster", rest, query: new URLSearchParams(query) };
}

function route() {
  const at = place();
  if (shown !== at.view) {
    current?.stop();
    main.replaceChildren();
    shown = at.view;
    document.title = `${TITLES[shown]} · vramcast`;
    const view = VIEWS[shown].open(main, place);
    current = { view, ...repeat(async () => note(await view.refresh()), say) };
    view.wake = current.now;
    window.scrollTo(0, 0);
  } else {
    current.view.moved?.(at);
    current.now();
  }
  drawTabs();
}

function note(found) {
  if (found) status = found;
  drawTabs();
}

function drawTabs() {
  const waiting = status?.pods?.waiting ?? 0;
  show(views, Object.entries(TITLES).map(([name, title]) =>
    h("a", { href: `#${name}`, "aria-current": name === shown ? "page" : null, "data-key": name }, title,
      name === "pods" && waiting > 0
        ? h("span", { class: "badge", "aria-label": `${waiting} waiting` }, waiting) : null)));
}

function say(error) {
  if (error) {
    live.className = "live down";
    show(live, h("i", { class: "dot" }), h("span", null, `${clean(error.message)} Trying again.`));
    return;
  }
  if (status === null) return;
  const late = status.telemetry && (status.telemetry_age_seconds ?? Infinity) > 120;
  const stale = !status.synced || status.stale_seconds > 60;
  live.className = `live ${stale ? "down" : late ? "late" : "up"}`;
  const text = !status.synced ? "not synced"
    : stale ? `the API server was silent for ${span(status.stale_seconds)}`
    : late ? "telemetry is late" : status.telemetry ? "live" : "live, no telemetry";
  show(live, h("i", { class: "dot" }), h("span", { title: `vramcast ${status.version}, mode ${status.mode}; ${
    plural(status.pods.running, "pod")} running` }, text));
}

window.addEventListener("hashchange", route);
route();
