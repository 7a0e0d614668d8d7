// Curves over time in an SVG of its own size: redrawn whole, which is cheap for a few hundred points.

import { duration } from "./words.js";

const EDGE = { left: 44, right: 8, top: 8, bottom: 20 };

function part(svg, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  svg.append(made);
  return made;
}

// The smallest of 1, 2 and 5 times a power of ten that gives at most `most` steps.
function step(span, most) {
  const power = 10 ** Math.floor(Math.log10(span / most));
  return power * [1, 2, 5, 10].find((factor) => span / (power * factor) <= most);
}

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];

// curves: [{ kind, points: [[time, value or null], …] }], bands: [[time, low, high], …]; times are seconds since the begin.
export function draw(svg, { curves, band = [], top, format, cursor = null }) {
  const { width, height } = svg.getBoundingClientRect();
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const times = [...curves.flatMap((curve) => curve.points), ...band].map(([time]) => time);
  if (!width || times.length < 2) {
    part(svg, "text", { x: width / 2, y: height / 2, class: "middle" }, "nothing to draw yet");
    return null;
  }
  const first = times.reduce((a, b) => Math.min(a, b));
  const last = times.reduce((a, b) => Math.max(a, b), first + 1);
  const x = (time) => EDGE.left + ((width - EDGE.left - EDGE.right) * (time - first)) / (last - first);
  const y = (value) => EDGE.top + (height - EDGE.top - EDGE.bottom) * (1 - value / top);
  const each = step(top, 4);
  for (let value = 0; value <= top * 1.0001; value += each) {
    part(svg, "line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value), class: "rule" });
    part(svg, "text", { x: EDGE.left - 6, y: y(value) + 4, class: "end" }, format(value));
  }
  const between = TIMES.find((seconds) => (last - first) / seconds <= Math.max(2, width / 110)) || 604800;
  for (let time = Math.ceil(first / between) * between; time <= last; time += between) {
    part(svg, "text", { x: Math.min(Math.max(x(time), 56), width - 18), y: height - 5, class: "middle" }, duration(time));
  }
  if (band.length) {
    const upper = band.map(([time, , high]) => `${x(time).toFixed(1)},${y(high).toFixed(1)}`);
    const lower = band.map(([time, low]) => `${x(time).toFixed(1)},${y(low).toFixed(1)}`).reverse();
    part(svg, "path", { d: `M${[...upper, ...lower].join("L")}Z`, class: "band" });
  }
  for (const { kind, points } of curves) part(svg, "path", { d: line(points, x, y), class: kind });
  if (cursor !== null) part(svg, "line", { x1: x(cursor), x2: x(cursor), y1: EDGE.top, y2: height - EDGE.bottom, class: "cursor" });
  return { timeAt: (left) => first + ((left - EDGE.left) / (width - EDGE.left - EDGE.right)) * (last - first) };
}

// A path that stops where nothing is known.
function line(points, x, y) {
  let pen = "M";
  let path = "";
  for (const [time, value] of points) {
    if (value === null || value === undefined) {
      pen = "M";
      continue;
    }
    path += `${pen}${x(time).toFixed(1)},${y(value).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

export function niceTop(highest) {
  if (!(highest > 0)) return 1;
  const each = step(highest, 4);
  return Math.ceil(highest / each - 1e-9) * each;
}
