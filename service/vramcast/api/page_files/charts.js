// Plots as SVG. Lines and areas have classes; colours are in the style sheet.

import { s } from "./dom.js";

const GAP = { left: 52, right: 14, top: 14, bottom: 34 };

export function plot({ width = 640, height = 320, x, y, label }) {
  const inner = { width: width - GAP.left - GAP.right, height: height - GAP.top - GAP.bottom };
  const scale = (axis, length) => {
    const change = axis.log ? (value) => Math.log(Math.max(value, axis.from)) : (value) => value;
    const [low, high] = [change(axis.from), change(axis.to)];
    return (value) => ((change(value) - low) / (high - low || 1)) * length;
  };
  const across = scale(x, inner.width);
  const up = scale(y, inner.height);
  const at = { x: (value) => GAP.left + across(value), y: (value) => GAP.top + inner.height - up(value) };
  const layers = [];
  return {
    at,
    width,
    line: (points, kind) => layers.push(s("polyline", { class: `curve ${kind}`, points: pairs(at, points) })),
    area: (lower, upper, kind) =>
      layers.push(s("polygon", { class: kind, points: `${pairs(at, lower)} ${pairs(at, [...upper].reverse())}` })),
    level(value, text, kind) {
      layers.push(s("line", { class: `level ${kind}`, x1: GAP.left, x2: width - GAP.right, y1: at.y(value), y2: at.y(value) }),
        s("text", { class: "levelname", x: width - GAP.right - 4, y: at.y(value) - 5, "text-anchor": "end" }, text));
    },
    dot: (px, py, kind, title, radius = 4) =>
      layers.push(s("circle", { class: `dot ${kind}`, cx: at.x(px).toFixed(1), cy: at.y(py).toFixed(1), r: radius }, s("title", null, title))),
    add: (...nodes) => layers.push(...nodes),
    draw() {
      const bottom = GAP.top + inner.height;
      return s("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
        y.ticks.map((value) => [
          s("line", { class: "grid", x1: GAP.left, x2: width - GAP.right, y1: at.y(value), y2: at.y(value) }),
          s("text", { class: "tick", x: GAP.left - 8, y: at.y(value) + 4, "text-anchor": "end" }, y.text(value))]),
        x.ticks.map((value) => s("text", { class: "tick", x: at.x(value), y: bottom + 18, "text-anchor": "middle" }, x.text(value))),
        s("text", { class: "axis", x: GAP.left + inner.width / 2, y: height - 2, "text-anchor": "middle" }, x.name),
        s("text", { class: "axis", x: 4, y: 10 }, y.name), layers);
    },
  };
}

const pairs = (at, points) => points.map(([px, py]) => `${at.x(px).toFixed(1)},${at.y(py).toFixed(1)}`).join(" ");

/** Round values from 0 to `to`, about `count` of them. */
export function ticks(to, count = 5) {
  const rough = to / count;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? power;
  return Array.from({ length: Math.floor(to / step) + 1 }, (_, at) => at * step);
}
