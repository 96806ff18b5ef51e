"use strict";
// Figures ------------------------------------------------------------------------------------------------------------
const plots = Object.keys(told.figures).map((name) => document.getElementById(name));
const colours = (plot) => {
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
  const changes = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", "font.color": ink, "font.family": "system-ui, sans-serif" };
  for (const axis of Object.keys(plot.layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    changes[axis + ".gridcolor"] = changes[axis + ".linecolor"] = line;
  }
  return changes;
};
const recolour = () => Promise.all(plots.map((plot) => Plotly.relayout(plot, colours(plot))));
// A figure in a folded section has no width until the section is unfolded.
const fit = (within) => plots.filter((plot) => within.contains(plot)).forEach((plot) => Plotly.relayout(plot, { autosize: true }));
const folded = document.querySelectorAll("details");
const unfold = () => { const at = location.hash && document.getElementById(location.hash.slice(1)); if (at && at.querySelector("details")) at.querySelector("details").open = true; };
const printing = (on) => {
  document.documentElement.toggleAttribute("data-print", on);
  for (const one of folded) {
    if (on) one.dataset.was = one.open ? "open" : "";
    one.open = on || one.dataset.was === "open";
  }
  if (on) fit(document);
  recolour();
};
const draw = (plot) => {
  const { data, layout } = told.figures[plot.id];
  // On touch screens a drag scrolls the page; elsewhere it zooms, and a double click zooms out.
  layout.dragmode = matchMedia("(pointer: fine)").matches ? "zoom" : false;
  return Plotly.newPlot(plot, data, layout, { responsive: true, displayModeBar: false });
};

// The slider ---------------------------------------------------------------------------------------------------------
// Every selection was made by the rules themselves when the page was written; here they are only looked up.
const follow = (live) => {
  const [slider, value, says, reset] = ["threshold", "threshold-value", "threshold-says", "threshold-reset"].map((id) => document.getElementById(id));
  const layout = document.getElementById("layout"), byThreshold = document.getElementById("by_threshold");
  const roles = Object.keys(live.labels), middle = (live.loss.reduce((a, b) => Math.min(a, b)) + live.loss.reduce((a, b) => Math.max(a, b))) / 2;
  const line = (u) => ({ type: "line", xref: "x", yref: "paper", x0: u, x1: u, y0: 0, y1: 1, line: { dash: "dash", width: 1.5, color: "#8a939c" } });
  const name = (u) => ({ text: "threshold", xref: "x", yref: "paper", x: u, y: 1, yanchor: "bottom", xanchor: "auto", showarrow: false });
  const show = (at) => {
    const start = at === null;
    const chosen = (rule) => (start ? live.start[rule] : live.selected[rule][at]);
    const u = start ? live.start_threshold : live.thresholds[at];
    const member = live.loss.map((loss, i) => (start ? live.passed[i] : live.allowed[i] && loss <= live.limits[at]));
    const count = start ? live.start_members : live.members[at];
    const rules = Object.keys(live.start);
    value.textContent = start ? live.start_text : live.texts[at];
    const known = live.rule in live.start ? live.rule : "oracle";
    const lead = start ? live.labels.selected : chosen(known);
    const screen = start ? live.screens.start : { ...live.screens[lead] };
    if (!start) screen.verdict = "At a utility threshold of " + live.texts[at] + ", " + screen.verdict[0].toLowerCase() + screen.verdict.slice(1);
    for (const [part, text] of Object.entries(screen)) document.getElementById("first-" + part).textContent = text;
    document.getElementById("first-fixed").hidden = start;
    says.textContent = count + " of " + live.loss.length + " configurations may be selected.";
    slider.setAttribute("aria-valuetext", value.textContent + ": " + says.textContent + " " + screen.verdict);
    for (const cell of document.querySelectorAll("tr[data-rule] > [data-figure]")) {
      const position = chosen(cell.parentElement.dataset.rule);
      cell.textContent = cell.dataset.figure === "above" ? above(live.score[position], live.score[chosen("oracle")]) : live.figures[cell.dataset.figure][position];
    }
    for (const row of document.querySelectorAll("tr[data-position]")) {
      const position = Number(row.dataset.position);
      row.classList.toggle("excluded", !member[position]);
      row.classList.toggle("marked", position === lead);
      row.lastElementChild.textContent = rules.filter((rule) => chosen(rule) === position).join(", ");
    }
    const y = (inside) => live.drawn.map((i) => (member[i] === inside ? live.score[i] : null));
    Plotly.restyle(layout, { y: [y(true), y(false)] }, [0, 1]);
    // Labels of one configuration are one. Away from the start, nobody computed a runner-up.
    const place = (role) => (start ? live.labels[role] : { selected: lead, "best utility": chosen("best-utility") }[role] ?? null);
    const first = (role) => place(role) !== null && roles.find((other) => place(other) === place(role)) === role;
    // The selected one and the runner-up are often close: the label of the lower one stands below.
    const lower = start && first("runner-up") && live.score[lead] < live.score[live.labels["runner-up"]] ? "selected" : "runner-up";
    const each = (value) => roles.map((role) => (first(role) ? [value(place(role), role)] : []));
    Plotly.restyle(layout, {
      x: each((i) => live.loss[i]), y: each((i) => live.score[i]),
      text: each((i) => roles.filter((role) => place(role) === i).join(", ")),
      textposition: each((i, role) => (role === lower ? "bottom " : "top ") + (live.loss[i] < middle ? "right" : "left")),
    }, roles.map((_, i) => i + 2));
    // Where nothing is excluded, the threshold divides nothing.
    const divides = !member.every((inside) => inside);
    Plotly.relayout(layout, { shapes: divides ? [line(u)] : [], annotations: divides ? [name(u)] : [] });
    Plotly.relayout(byThreshold, { shapes: [line(u)] });
  };
  const above = (score, oracle) => (live.relative && oracle > 0 ? Math.round((100 * (score - oracle)) / oracle) + " %" : "–");
  slider.addEventListener("input", () => show(Number(slider.value)));
  reset.addEventListener("click", () => { slider.value = live.start_at; show(null); });
  slider.value = live.start_at; // a browser may restore another one
  show(null);
};

// Parallel coordinates -----------------------------------------------------------------------------------------------
const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const shade = (share) => {
  const at = Math.min(3, Math.floor(share * 4)), part = share * 4 - at;
  return "rgb(" + VIRIDIS[at].map((from, i) => Math.round(from + part * (VIRIDIS[at + 1][i] - from))).join() + ")";
};
const parallel = ({ drawn, axes }) => {
  const [width, height, top, bottom, side] = [960, 340, 40, 14, 70];
  const place = document.getElementById("parallel"), says = document.getElementById("parallel-says");
  const add = (parent, name, attributes, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    parent.append(element);
    return element;
  };
  const image = add(place, "svg", { viewBox: `0 0 ${width} ${height}` });
  const x = (i) => side + (i * (width - 2 * side)) / (axes.length - 1);
  const heights = axes.map(({ values, ticks }) => {
    const all = values.concat(ticks), low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
    return (value) => (high > low ? height - bottom - ((value - low) / (high - low)) * (height - top - bottom) : (height + top - bottom) / 2);
  });
  const ends = [height - bottom, top], score = axes.length - 1;
  const lines = drawn.map((position, k) => {
    const d = axes.map((axis, i) => (i ? "L" : "M") + x(i).toFixed(1) + "," + heights[i](axis.values[k]).toFixed(1)).join("");
    const share = (ends[0] - heights[score](axes[score].values[k])) / (ends[0] - ends[1]);
    const line = add(image, "path", { d, stroke: shade(Math.min(1, Math.max(0, share))) });
    if (told.live) add(line, "title", {}, told.live.names[position]);
    return line;
  });
  const ranges = axes.map(() => null), bars = [];
  const keep = () => {
    const kept = drawn.map((_, k) => ranges.every((range, i) => !range || (heights[i](axes[i].values[k]) >= range[0] && heights[i](axes[i].values[k]) <= range[1])));
    lines.forEach((line, k) => line.classList.toggle("dim", !kept[k]));
    const left_out = new Set(drawn.filter((_, k) => !kept[k]));
    for (const row of document.querySelectorAll("tr[data-position]")) row.hidden = left_out.has(Number(row.dataset.position));
    const asked = ranges.some((range) => range);
    says.textContent = asked ? kept.filter((inside) => inside).length + " of " + drawn.length + " configurations are in the ranges; the table of configurations lists them." : "";
    bars.forEach((bar, i) => {
      bar.setAttribute("y", ranges[i] ? ranges[i][0] : 0);
      bar.setAttribute("height", ranges[i] ? ranges[i][1] - ranges[i][0] : 0);
    });
  };
  axes.forEach((axis, i) => {
    add(image, "line", { x1: x(i), x2: x(i), y1: top, y2: height - bottom });
    add(image, "text", { x: x(i), y: 18, "text-anchor": "middle", class: "name" }, axis.label);
    axis.ticks.forEach((tick, t) => add(image, "text", { x: x(i) - 6, y: heights[i](tick) + 4, "text-anchor": "end" }, axis.texts[t]));
    bars.push(add(image, "rect", { x: x(i) - 7, width: 14, y: 0, height: 0, class: "range" }));
    const grip = add(image, "rect", { x: x(i) - 22, width: 44, y: top - 10, height: height - top - bottom + 20, class: "grip" });
    const pointed = (event) => ((event.clientY - image.getBoundingClientRect().top) * height) / image.getBoundingClientRect().height;
    let from = null;
    grip.addEventListener("pointerdown", (event) => { from = pointed(event); grip.setPointerCapture(event.pointerId); });
    grip.addEventListener("pointermove", (event) => { if (from !== null) { ranges[i] = [from, pointed(event)].sort((a, b) => a - b); keep(); } });
    grip.addEventListener("pointercancel", () => { from = null; });
    grip.addEventListener("pointerup", (event) => { if (Math.abs(pointed(event) - from) < 4) ranges[i] = null; from = null; keep(); });
  });
};

// Tables -------------------------------------------------------------------------------------------------------------
// A click on a column's header, or Enter, sorts the rows by it; a second one turns the order round.
const sortable = (table) => {
  const headers = Array.from(table.tHead.rows[0].cells), body = table.tBodies[0];
  const value = (row, at) => { const text = row.cells[at].textContent, figure = parseFloat(text); return Number.isNaN(figure) ? text : figure; };
  const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  headers.forEach((header, at) => {
    header.tabIndex = 0;
    const sort = () => {
      const down = header.ariaSort === "ascending";
      for (const other of headers) other.ariaSort = null;
      header.ariaSort = down ? "descending" : "ascending";
      const rows = Array.from(body.rows).sort((a, b) => (down ? -1 : 1) * compare(value(a, at), value(b, at)));
      body.append(...rows);
    };
    header.addEventListener("click", sort);
    header.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
};

document.querySelectorAll("table").forEach(sortable);
if (told.parallel) parallel(told.parallel);
for (const one of folded) one.addEventListener("toggle", () => one.open && fit(one));
unfold();
addEventListener("hashchange", unfold);
Promise.all(plots.map(draw)).then(recolour).then(() => told.live && follow(told.live));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));
