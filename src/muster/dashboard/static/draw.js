// Charts over time in an SVG of its own size: redrawn whole, which is cheap for a few hundred points.

import { svgPart } from "./dom.js";
import { duration } from "./format.js";

const EDGE = { left: 44, right: 8, top: 8, bottom: 20 };
const MOST_POINTS = 120; // in a small chart

// The smallest of 1, 2 and 5 times a power of ten that gives at most `most` steps.
function step(span, most) {
  const power = 10 ** Math.floor(Math.log10(span / most));
  return power * [1, 2, 5, 10].find((factor) => span / (power * factor) <= most);
}

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];

// curves: [{ kind, points: [[time, value or null], …] }], bands: [[time, low, high], …]; times are seconds since the start.
export function draw(svg, { curves, band = [], top, format, cursor = null }) {
  const { width, height } = svg.getBoundingClientRect();
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const part = (name, attributes, text) => svg.append(svgPart(name, attributes, text));
  const times = [...curves.flatMap((curve) => curve.points), ...band].map(([time]) => time);
  if (!width || times.length < 2) {
    part("text", { x: width / 2, y: height / 2, class: "middle" }, "no data yet");
    return null;
  }
  const first = times.reduce((a, b) => Math.min(a, b));
  const last = times.reduce((a, b) => Math.max(a, b), first + 1);
  const x = (time) => EDGE.left + ((width - EDGE.left - EDGE.right) * (time - first)) / (last - first);
  const y = (value) => EDGE.top + (height - EDGE.top - EDGE.bottom) * (1 - value / top);
  const each = step(top, 4);
  for (let value = 0; value <= top * 1.0001; value += each) {
    part("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value), class: "rule" });
    part("text", { x: EDGE.left - 6, y: y(value) + 4, class: "end" }, format(value));
  }
  const between = TIMES.find((seconds) => (last - first) / seconds <= Math.max(2, width / 110)) || 604800;
  for (let time = Math.ceil(first / between) * between; time <= last; time += between) {
    part("text", { x: Math.min(Math.max(x(time), 56), width - 18), y: height - 5, class: "middle" }, duration(time));
  }
  if (band.length) {
    const upper = band.map(([time, , high]) => `${x(time).toFixed(1)},${y(high).toFixed(1)}`);
    const lower = band.map(([time, low]) => `${x(time).toFixed(1)},${y(low).toFixed(1)}`).reverse();
    part("path", { d: `M${[...upper, ...lower].join("L")}Z`, class: "band" });
  }
  for (const { kind, points } of curves) part("path", { d: line(points, x, y), class: kind });
  if (cursor !== null) part("line", { x1: x(cursor), x2: x(cursor), y1: EDGE.top, y2: height - EDGE.bottom, class: "cursor" });
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

// A small chart without axes, from 0 to `top`; points: [[time, value or null], …]. `mark` is the number of a point.
export function spark(svg, points, top, mark = null) {
  const [width, height] = [120, 28];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const each = Math.ceil(points.length / MOST_POINTS);
  const thin = points.filter((_, at) => at % each === 0 || at === points.length - 1);
  if (thin.length < 2) return svg.replaceChildren();
  const [first, last] = [thin[0][0], thin[thin.length - 1][0]];
  const x = (time) => (width * (time - first)) / (last - first || 1);
  const y = (value) => 1 + (height - 2) * (1 - Math.min(1, value / (top || 1)));
  const path = line(thin, x, y);
  const known = thin.filter(([, value]) => value !== null && value !== undefined);
  const parts = [svgPart("path", { d: path, class: "main" })];
  if (known.length > 1) parts.unshift(svgPart("path", { d: `${line(known, x, y)}L${x(known.at(-1)[0]).toFixed(1)},${height}L${x(known[0][0]).toFixed(1)},${height}Z`, class: "area" }));
  if (mark !== null) parts.push(svgPart("line", { x1: x(points[mark][0]), x2: x(points[mark][0]), y1: 0, y2: height, class: "cursor" }));
  svg.replaceChildren(...parts);
}
