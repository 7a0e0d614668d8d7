// Speed and waiting over time. A pointer over a chart reads its values.

import { $ } from "./dom.js";
import { draw, niceTop } from "./draw.js";
import { duration, known, percent, significant } from "./format.js";

const MOST_CURVES = 16; // more ranks are a band, with the chosen rank and the one that waits least on it

let again = () => {};
let cursor = null;
let scales = {};

// What a rate counts: Muster sees the steps of optimizers; without one, collectives.
export const unitOf = (state) => (state.ranks.some((rank) => rank.steps > 0) || !state.ranks.length ? "steps" : "collectives");

export function showCharts(history, state, chosen) {
  again = () => showCharts(history, state, chosen);
  const at = history.map((moment) => moment.time - state.begin);
  const read = cursor === null ? history.length - 1 : closest(at, cursor);
  showRate(history, at, read, unitOf(state));
  showWaiting(history, at, read, chosen);
}

function showRate(history, at, read, unit) {
  const rates = history.map((moment) => moment.step_rate);
  const top = niceTop(rates.reduce((a, b) => Math.max(a, b || 0), 0));
  const curves = [{ kind: "main", points: rates.map((rate, index) => [at[index], rate]) }];
  scales.rate = draw($("rate"), { curves, top, format: significant, cursor: cursor === null ? null : at[read] });
  const value = rates[read];
  $("rate-title").textContent = unit === "steps" ? "Steps per second" : "Collectives per second";
  $("rate-title").title = unit === "steps" ? "Steps of optimizers" : "This script uses no optimizer of torch.optim, so Muster counts collectives; a step of it may make several";
  $("rate-words").textContent = known(value) ? `${significant(value)} ${unit}/s, slowest rank${moment(at[read])}` : "not known yet";
}

function showWaiting(history, at, read, chosen) {
  const now = history.length ? Object.entries(history[read].waiting) : [];
  const points = (rank) => history.map((item, index) => [at[index], item.waiting[rank]]);
  const least = now.length > 1 ? now.reduce((a, b) => (b[1] < a[1] ? b : a))[0] : null;
  const all = now.length <= MOST_CURVES ? now.map(([rank]) => ({ kind: "", points: points(rank) })) : [];
  const band = all.length ? [] : history.map((item, index) => [at[index], ...range(Object.values(item.waiting))]).filter(([, low]) => low <= 1);
  const curves = [...all, ...(least === null ? [] : [{ kind: "least", points: points(least) }]), { kind: "main", points: points(chosen) }];
  scales.waiting = draw($("waiting"), { curves: now.length ? curves : [], band, top: 1, format: percent, cursor: cursor === null ? null : at[read] });
  const words = [];
  const mine = now.find(([rank]) => Number(rank) === chosen);
  if (mine) words.push(`rank ${chosen}: ${percent(mine[1])}`);
  if (least !== null && Number(least) !== chosen) words.push(`lowest (dashed): rank ${least}, ${percent(history[read].waiting[least])}`);
  $("waiting-words").textContent = words.length ? words.join(" · ") + moment(at[read]) : "not known yet";
}

const range = (values) => [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), 0)];

const moment = (time) => (cursor === null ? "" : ` at ${duration(time)}`);

function closest(times, time) {
  return times.reduce((best, value, index) => (Math.abs(value - time) < Math.abs(times[best] - time) ? index : best), 0);
}

for (const name of ["rate", "waiting"]) {
  $(name).addEventListener("pointermove", (event) => {
    if (!scales[name]) return;
    cursor = scales[name].timeAt(event.clientX - $(name).getBoundingClientRect().left);
    again();
  });
  $(name).addEventListener("pointerleave", () => {
    cursor = null;
    again();
  });
}
