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
const printing = (on) => { document.documentElement.toggleAttribute("data-print", on); recolour(); };
const draw = (plot) => {
  const { data, layout } = told.figures[plot.id];
  // On touch screens a drag scrolls the page; elsewhere it zooms, and a double click zooms out.
  if (!layout.scene) layout.dragmode = matchMedia("(pointer: fine)").matches ? "zoom" : false;
  return Plotly.newPlot(plot, data, layout, { responsive: true, displayModeBar: false });
};

// The slider ---------------------------------------------------------------------------------------------------------
// Every selection was made by the rules themselves when the page was written; here they are only looked up.
const follow = (live) => {
  const [slider, value, says, reset] = ["threshold", "threshold-value", "threshold-says", "threshold-reset"].map((id) => document.getElementById(id));
  const layout = document.getElementById("layout"), byThreshold = document.getElementById("by_threshold");
  const line = (u) => ({ type: "line", xref: "x", yref: "paper", x0: u, x1: u, y0: 0, y1: 1, line: { dash: "dash", width: 1.5, color: "#8a939c" } });
  const show = (at) => {
    const start = at === null;
    const chosen = (rule) => (start ? live.start[rule] : live.selected[rule][at]);
    const u = start ? live.start_threshold : live.thresholds[at];
    const member = live.loss.map((loss, i) => (start ? live.passed[i] : live.allowed[i] && loss <= live.limits[at]));
    const count = start ? live.start_members : live.members[at];
    const rules = Object.keys(live.start);
    value.textContent = start ? live.start_text : live.texts[at];
    const lead = live.rule in live.start ? chosen(live.rule) : chosen("oracle");
    says.textContent = count + " of " + live.loss.length + " configurations; " + (live.rule in live.start ? live.rule : "oracle") + ": " + live.names[lead] + ", score " + live.figures.score[lead] + ".";
    slider.setAttribute("aria-valuetext", value.textContent + ": " + says.textContent);
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
    Plotly.restyle(layout, { x: rules.map((rule) => [live.loss[chosen(rule)]]), y: rules.map((rule) => [live.score[chosen(rule)]]) }, rules.map((_, i) => i + 2));
    for (const plot of [layout, byThreshold]) Plotly.relayout(plot, { shapes: [line(u)] });
  };
  const above = (score, oracle) => (live.relative && oracle > 0 ? Math.round((100 * (score - oracle)) / oracle) + " %" : "–");
  slider.addEventListener("input", () => show(Number(slider.value)));
  reset.addEventListener("click", () => { slider.value = live.start_at; show(null); });
  slider.value = live.start_at; // a browser may restore another one
  show(null);
};

Promise.all(plots.map(draw)).then(recolour).then(() => told.live && follow(told.live));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));
