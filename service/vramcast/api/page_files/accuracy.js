// Accuracy: was what was promised enough, and was it too much? And what has been learned from it?

import { count, h, memory, percent, plural, shortProduct, show, span } from "./dom.js";
import { get } from "./server.js";
import { plot } from "./charts.js";

const MIB = 1 << 20;
const SHOWN = 6;

export function open(main) {
  const shown = h("div", { class: "accuracy" });
  main.append(h("h1", { class: "unseen" }, "Accuracy"), shown);
  return {
    wake: () => {},
    async refresh() {
      const answer = await get("accuracy");
      draw(shown, answer);
      return answer.status;
    },
  };
}

function draw(parent, answer) {
  const { groups, outcomes, status } = answer;
  const runs = groups.reduce((sum, group) => sum + group.outcomes, 0);
  const mean = (value) => groups.reduce((sum, group) => sum + group.outcomes * value(group), 0) / runs;
  const measured = groups.filter((group) => group.over_reservation !== null);
  const over = measured.reduce((sum, group) => sum + group.outcomes * group.over_reservation, 0) /
    measured.reduce((sum, group) => sum + group.outcomes, 0);
  const ooms = groups.reduce((sum, group) => sum + group.ooms, 0);
  const kept = mean((group) => group.coverage);
  const promised = mean((group) => group.promised);
  const tile = (value, name, more, kind = "") => h("div", { class: `tile ${kind}` },
    h("b", null, value), h("span", null, name), h("small", null, more));
  const unmeasured = Object.values(answer.unmeasured).reduce((sum, each) => sum + each, 0);
  show(parent,
    h("section", { class: "tiles", "aria-label": "Totals" },
      tile(count(runs), runs === 1 ? "measured run" : "measured runs", `${count(unmeasured)} not measured`),
      tile(runs ? percent(kept, 1) : "–", "within their promise", runs ? `promised: ${percent(promised, 1)}` : "",
        runs && kept + 0.02 < promised ? "waits" : ""),
      tile(Number.isFinite(over) ? `${over.toFixed(2)} ×` : "–", "over-reservation", "promise over peak"),
      tile(count(ooms), ooms === 1 ? "OOM" : "OOMs", plural(answer.ooms.length, "task") + " remembered", ooms ? "waits" : ""),
      tile(answer.calibration, "calibration", Object.entries(answer.models).map(([role, version]) => `${role}: ${version}`).join(", "), "words")),
    runs === 0 ? h("p", { class: "nothing" }, status.telemetry ? "No run has been measured yet. A run counts when it ends."
      : "Without telemetry no run can be measured. Set prometheus_url or exporter_urls.") : [
      h("div", { class: "two" },
        h("section", null, h("h2", null, "Promised against used"), scatter(outcomes, parent.clientWidth)),
        h("section", null, h("h2", null, "By family, GPU and level"), groupTable(groups))),
      h("div", { class: "two" },
        h("section", null, h("h2", null, "Worst misses"), outcomeTable(outcomes.filter((each) => !each.kept)
          .sort((one, other) => excess(other) - excess(one)), "No promise was too small.", status.now)),
        h("section", null, h("h2", null, "Largest over-reservers"), outcomeTable(outcomes.filter((each) => each.kept)
          .sort((one, other) => waste(other) - waste(one)), "No run kept its promise yet.", status.now)))],
    h("section", null, h("h2", null, "Utilization by counter"), counterTable(answer.counters)),
    h("section", null, h("h2", null, "What has been learned"), learned(answer)));
}

const excess = (each) => (each.ending === "oom" ? 1000 : 0) + each.peak_bytes / each.bound_bytes;
const waste = (each) => each.bound_bytes - each.peak_bytes;

function scatter(outcomes, room) {
  if (!outcomes.length) return h("p", { class: "dim" }, "No run has ended since the service started.");
  const values = outcomes.flatMap((each) => [each.peak_bytes, each.bound_bytes]).filter((each) => each > 0).map((each) => each / MIB / 1024);
  const from = Math.max(0.05, Math.min(...values) / 1.4);
  const to = Math.max(...values) * 1.4;
  const steps = [0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256].filter((each) => each >= from && each <= to);
  const axis = (name) => ({ from, to, log: true, ticks: steps, text: (value) => String(value), name });
  const drawn = plot({ width: Math.max(300, Math.min(560, room - 40)), height: 380, label: `Promise and observed peak of ${plural(outcomes.length, "run")}`,
    x: axis("observed peak, GiB"), y: axis("promised GiB") });
  drawn.area([[from, from], [to, to]], [[from, from], [to, from]], "danger");
  drawn.line([[from, from], [to, to]], "even");
  for (const each of outcomes) {
    const text = `${each.pod}: promised ${memory(each.bound_bytes / MIB)}, peak ${memory(each.peak_bytes / MIB)}, ${each.ending}`;
    drawn.dot(Math.max(from, each.peak_bytes / MIB / 1024), Math.max(from, each.bound_bytes / MIB / 1024),
      each.ending === "oom" ? "oom" : each.kept ? "kept" : "missed", text, 4.5);
  }
  return h("figure", null, drawn.draw(), h("figcaption", { class: "keys" },
    h("span", null, h("i", { class: "key kept" }), "promise was enough"), h("span", null, h("i", { class: "key missed" }), "used more"),
    h("span", null, h("i", { class: "key oom" }), "out of memory"), h("span", { class: "dim" }, "on the line: promise = peak")));
}

function groupTable(groups) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Groups" }, h("table", { class: "wide" },
    h("thead", null, h("tr", null, ["family", "GPU", "level", "runs", "kept", "promised", "reserved"].map((name, at) =>
      h("th", { scope: "col", class: at > 2 ? "number" : "" }, name)))),
    h("tbody", null, groups.map((group) => h("tr", { "data-key": `${group.family}/${group.level}/${group.product}` },
      h("th", { scope: "row" }, group.family), h("td", null, shortProduct(group.product)), h("td", null, group.level),
      h("td", { class: "number" }, count(group.outcomes)),
      h("td", { class: `number ${group.coverage + 0.02 < group.promised ? "no" : ""}` }, percent(group.coverage)),
      h("td", { class: "number dim" }, percent(group.promised)),
      h("td", { class: "number" }, group.over_reservation === null ? "–" : `${group.over_reservation.toFixed(2)} ×`))))));
}

function counterTable(counters) {
  const sign = (value) => `${value < 0 ? "−" : "+"}${percent(Math.abs(value))}`;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Utilization" }, h("table", { class: "wide" },
    h("thead", null, h("tr", null, ["counter", "compared with", "runs", "forecast − observed, mean"].map((name, at) =>
      h("th", { scope: "col", class: at > 1 ? "number" : "" }, name)))),
    h("tbody", null, counters.map((each) => h("tr", { "data-key": each.counter }, h("th", { scope: "row" }, each.counter),
      each.missing ? h("td", { class: "dim" }, each.missing) : h("td", null, each.metric),
      h("td", { class: "number" }, count(each.runs)),
      h("td", { class: "number" }, each.mean_error === null ? "–" : sign(each.mean_error)))))));
}

function outcomeTable(outcomes, nothing, now) {
  if (!outcomes.length) return h("p", { class: "dim" }, nothing);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" }, h("table", { class: "wide" },
    h("thead", null, h("tr", null, ["pod", "promised", "peak", "", "ended"].map((name, at) =>
      h("th", { scope: "col", class: at ? "number" : "" }, name)))),
    h("tbody", null, outcomes.slice(0, SHOWN).map((each) => h("tr", null,
      h("th", { scope: "row" }, h("span", null, each.pod), h("small", null, `${each.family || each.level}, ${shortProduct(each.product)}`)),
      h("td", { class: "number" }, memory(each.bound_bytes / MIB)), h("td", { class: "number" }, memory(each.peak_bytes / MIB)),
      h("td", { class: "number" }, each.ending === "oom" ? h("span", { class: "no" }, "OOM")
        : `${(each.bound_bytes / Math.max(1, each.peak_bytes)).toFixed(2)} ×`),
      h("td", { class: "number dim" }, `${span(now - each.ended_at)} ago`))))));
}

function learned(answer) {
  const { cells, ooms, status } = answer;
  const factor = (value) => h("td", { class: "number" }, `× ${value.toFixed(3)}`);
  return [
    cells.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Calibration" }, h("table", { class: "wide" },
      h("caption", null, "Calibration: factors on the forecasts, from this cluster's runs"),
      h("thead", null, h("tr", null, ["GPU", "family", "runs", "misses", "median", "bound"].map((name, at) =>
        h("th", { scope: "col", class: at > 1 ? "number" : "" }, name)))),
      h("tbody", null, cells.map((cell) => h("tr", null, h("th", { scope: "row" }, shortProduct(cell.product)), h("td", null, cell.family),
        h("td", { class: "number" }, count(cell.outcomes)), h("td", { class: "number" }, count(cell.misses)),
        factor(cell.median_factor), factor(cell.bound_factor))))))
      : h("p", { class: "dim" }, "Calibration has learned nothing yet. It learns from runs that are described by a model, a profile or a summary."),
    ooms.length ? h("ul", { class: "advice" }, ooms.map((each) => h("li", { class: "annotation" }, h("span", { class: "mark", "aria-hidden": "true" }, "!"),
      h("span", null, `${each.namespace}/${each.owner} ran out of memory with ${memory(each.short_bytes / MIB)}. Its next run gets at least ${
        memory(each.floor_mib)}.`, h("small", null, `${span(status.now - each.died_at)} ago`))))) : null];
}
