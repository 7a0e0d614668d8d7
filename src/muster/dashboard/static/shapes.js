// Each state has a shape besides its color, in a square of 12.

import { svgPart } from "./dom.js";

export const SHAPES = {
  failed: "M2.500 1L6 4.500 9.500 1 11 2.500 7.500 6 11 9.500 9.500 11 6 7.500 2.500 11 1 9.500 4.500 6 1 2.500z",
  hung: "M6 .5L11.700 11H.300zM5.300 4.300v3.400h1.400V4.300zM5.300 8.500v1.400h1.400V8.500z",
  lost: "M5 1h2v6H5zM5 9h2v2H5z",
  stopped: "M2 1h3v10H2zM7 1h3v10H7z",
  disk: "M1 2h10v3H1zM1 7h10v3H1z",
  slow: "M1 2h10L6 11z",
  running: "M2 1l9 5-9 5z",
  waiting: "M2 1h8L6.800 6 10 11H2l3.200-5z",
  starting: "M6 1a5 5 0 1 0 .01 0zM6 3a3 3 0 1 1-.01 0z",
  canceled: "M6 .5a5.500 5.500 0 1 0 .01 0zM3 5.200h6v1.600H3z",
  ended: "M1 6.500l1.500-1.500L5 7.500l4.800-5.500L11.300 3.400 5 10.500z",
};

const WORDS = { disk: "waiting for disk", stopped: "suspended (SIGSTOP)", ended: "finished", canceled: "stopped by Muster" };

// A straggler is shown as slow, whatever it does at this moment.
export const rankState = ({ rank, state }, slow) => (slow.includes(rank) && ["running", "waiting"].includes(state) ? "slow" : state);

export const rankWords = (state) => WORDS[state] || state;

export function shape(state) {
  const svg = svgPart("svg", { viewBox: "0 0 12 12", class: `shape ${state}`, "aria-hidden": "true" });
  svg.append(svgPart("path", { d: SHAPES[state] || SHAPES.starting, "fill-rule": "evenodd" }));
  return svg;
}

// The state of a job as one of the above, from its line in the list or its view.
export function jobState({ life, status, phase, exit_code: code, stopped_by: stopper, hung_since: hung, slow }) {
  if (life === "died" || status.startsWith("silent") || life === "unknown") return "lost";
  if (phase === "ended") return stopper ? "canceled" : code === 0 ? "ended" : "failed";
  if (hung !== null && hung !== undefined) return "hung";
  return phase === "running" ? (slow?.length ? "slow" : "running") : "starting";
}
