// What Muster found, newest first, and the stacks of a report side by side: ranks that stand at the same place share one.

import { $, clock, element, get, ranks } from "./words.js";

const MOST_COLUMNS = 24;
const MOST_IN_SIGHT = 4;
const KINDS = { hang: "Hang", straggler: "Slow rank", stacks: "Stacks" };

let shown = 0;

export function showReports(state) {
  const [list, older] = [$("report-list"), $("older")];
  $("reports").hidden = !state.reports.length;
  const hosts = new Map(state.ranks.map((rank) => [rank.rank, rank.host]));
  for (; shown < state.reports.length; shown += 1) list.prepend(card(state.reports[shown], shown, hosts));
  while (list.childElementCount > MOST_IN_SIGHT) older.firstElementChild.after(list.lastChild);
  older.hidden = older.childElementCount === 1;
  older.firstElementChild.textContent = `${older.childElementCount - 1} earlier`;
}

function card(report, number, hosts) {
  const made = element(
    "article",
    { class: `report ${report.kind}` },
    element("p", { class: "when" }, element("span", { class: "badge" }, KINDS[report.kind] || report.kind), ` at ${clock(report.time)}`),
    element("p", { class: "sentence" }, report.sentence),
  );
  const detail = element("pre", {}, report.detail);
  if (report.detail && report.stacks) made.append(element("details", {}, element("summary", {}, "As it was told in the terminal"), detail));
  else if (report.detail) made.append(detail);
  if (report.stacks) made.append(...stacksOf(report, number, hosts));
  return made;
}

function stacksOf(report, number, hosts) {
  const columns = element("div", { class: "columns", id: `stacks-${number}`, hidden: true });
  const words = (verb) => `${verb} the stacks of ${report.stacks} ${report.stacks === 1 ? "rank" : "ranks"}`;
  const button = element("button", { type: "button", "aria-expanded": "false", "aria-controls": columns.id }, words("Show"));
  const toggle = async () => {
    if (!columns.childNodes.length) {
      try {
        columns.replaceChildren(...columnsOf(await get("stacks.json", { report: number }), report, hosts));
      } catch (error) {
        columns.replaceChildren(`They could not be read: ${error.message}`);
      }
    }
    columns.hidden = !columns.hidden;
    button.setAttribute("aria-expanded", !columns.hidden);
    button.textContent = words(columns.hidden ? "Show" : "Hide");
  };
  button.addEventListener("click", toggle);
  if (report.kind === "hang") toggle();
  return [button, columns];
}

function columnsOf(stacks, report, hosts) {
  const groups = new Map();
  for (const [rank, text] of Object.entries(stacks)) {
    const key = text.replace(/0x[0-9a-f]+/g, ""); // threads have other addresses in each process
    if (!groups.has(key)) groups.set(key, { text, members: [] });
    groups.get(key).members.push(Number(rank));
  }
  const isCause = (group) => group.members.some((rank) => report.ranks.includes(rank));
  const order = [...groups.values()].sort((a, b) => isCause(b) - isCause(a) || a.members.length - b.members.length || a.members[0] - b.members[0]);
  const columns = order.slice(0, MOST_COLUMNS).map((group) => column(group, isCause(group), hosts));
  if (order.length > MOST_COLUMNS) {
    const rest = order.slice(MOST_COLUMNS);
    const more = element("button", { type: "button" }, `${rest.length} more stacks`);
    more.addEventListener("click", () => more.replaceWith(...rest.map((group) => column(group, isCause(group), hosts))));
    columns.push(more);
  }
  return columns;
}

function column({ text, members }, cause, hosts) {
  const where = [...new Set(members.map((rank) => hosts.get(rank)).filter(Boolean))];
  const title = `${ranks(members)}${where.length ? ` on ${where.join(", ")}` : ""}`;
  return element(
    "article",
    { class: cause && "cause" },
    element("h3", {}, title[0].toUpperCase() + title.slice(1), ...(cause ? [" ", element("small", {}, "(named)")] : [])),
    element("pre", { tabindex: "0", "aria-label": `Stack of ${title}` }, shortened(text) || "(no stack could be taken)"),
  );
}

// Where packages are installed says little, and takes the room of what does.
const shortened = (text) => text.replace(/"[^"\n]*\/(?:site-packages|dist-packages|lib\/python3\.\d+)\//g, '"…/');
