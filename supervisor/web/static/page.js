"use strict";
// Everything that comes from a run is set as text, never as HTML. In a report the data stands in the page itself.
const $ = (id) => document.getElementById(id);
const frozen = document.getElementById("data");
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#f0e442"]; // Okabe and Ito
const OTHERS = ["#d55e00", "#e69f00", "#f0e442", "#56b4e9", "#cc79a7", "#999999", "#0072b2"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const HEIGHT = 150, EVERY_MS = 2500;
const FEW_STEPS = 12, MOST_STEPS = 100;
let shown = null, allSteps = false, hours = 0, library = null, toldAt = 0;
const etags = {};

function add(parent, tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = String(text);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  parent.append(made);
  return made;
}
function clear(id) { const found = $(id); found.replaceChildren(); return found; }
function clock(t) { return t ? new Date(t * 1000).toISOString().slice(0, 16).replace("T", " ") : "?"; }
function iso(t) { return new Date(t * 1000).toISOString().slice(0, 23); } // plotly shows it as it stands: UTC
function span(s) {
  if (s === null || s === undefined) return "?";
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min` : `${(s / 86400).toFixed(1)} d`;
}
function load(name) {
  return new Promise((done, failed) => {
    const script = add(document.head, "script", null, { src: `static/${name}` });
    script.onload = done; script.onerror = () => failed(new Error(`${name} did not come`));
  });
}

function showHead(run) {
  document.title = `${run.run}: ${run.state}`;
  $("name").textContent = run.run; $("state").textContent = run.state;
  $("state").className = run.incidents.some((one) => !one.closed) || ["unwatched", "not running", "stopped", "unfit", "gave-up", "paused", "recovering"].includes(run.state) ? "alarm" : run.state === "running" ? "well" : ""; $("sentence").textContent = run.sentence;
  const told = [run.since ? `since ${clock(run.since)} UTC` : "", money(run.money)].filter(Boolean);
  $("told").textContent = told.join(" · ");
  const facts = clear("facts");
  for (const [name, value] of run.facts) { const pair = add(facts, "div"); add(pair, "dt", name); add(pair, "dd", value); }
  const notes = clear("notes");
  for (const note of run.notes) add(notes, "li", note);
}
function money(m) {
  if (!m) return "";
  const useful = `${(100 * m.useful).toFixed(1)} % of ${span(m.hours * 3600)} were useful`;
  if (m.dollars === undefined) return useful;
  const each = m.per_useful_hour === undefined ? "" : `, $${m.per_useful_hour.toFixed(2)} a useful hour`;
  return `$${m.dollars.toFixed(2)} so far at $${m.per_hour.toFixed(2)} an hour${each} · ${useful}`;
}

function bandsOf(run, end) {
  const bands = [];
  run.attempts.forEach((one, n) => bands.push({ x0: iso(one.from), x1: iso(one.to), color: n % 2 ? "rgba(128,128,128,.14)" : "rgba(128,128,128,.05)" }));
  for (const one of run.incidents) if (one.opened) bands.push({ x0: iso(one.opened), x1: iso(one.closed || end), color: "rgba(213,94,0,.28)" });
  return bands.map((one) => ({ type: "rect", xref: "x", yref: "paper", x0: one.x0, x1: one.x1, y0: 0, y1: 1, fillcolor: one.color, line: { width: 0 }, layer: "below" }));
}
function showCharts(run) {
  const place = $("charts");
  if (!run.charts.length) { place.textContent = "There is nothing to draw yet."; return; }
  const style = getComputedStyle(document.body), ink = style.color, count = run.charts.length, narrow = window.innerWidth < 700;
  const grid = style.getPropertyValue("--line"), traces = [];
  const over = !run.is_live, lasts = run.attempts.map((one) => one.to);
  const begin = Math.min(...run.charts.flatMap((chart) => chart.lines.map((line) => line.x[0]))), end = over && lasts.length ? Math.max(...lasts) : run.at;
  const total = HEIGHT * count + 74, gap = 34 / total, part = (1 - gap * (count - 1)) / count;
  const layout = {
    height: total, margin: { l: narrow ? 44 : 60, r: 12, t: 24, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 12 }, hovermode: "x", hoverdistance: 20, showlegend: false, dragmode: "zoom", annotations: [], shapes: bandsOf(run, run.at), uirevision: "kept",
    xaxis: { type: "date", gridcolor: grid, linecolor: grid, anchor: count > 1 ? `y${count}` : "y", range: [iso(hours ? end - hours * 3600 : begin), iso(end + (hours ? hours * 36 : (end - begin) * .02))] },
  };
  run.charts.forEach((chart, n) => {
    const top = 1 - n * (part + gap), id = n ? `y${n + 1}` : "y", zero = chart.id.startsWith("gpu") || chart.id === "disk" || chart.id === "engine" || chart.id === "link"; // samples: what was seen holds until the next
    layout[n ? `yaxis${n + 1}` : "yaxis"] = { domain: [Math.max(0, top - part), top], gridcolor: grid, zeroline: false, fixedrange: true, anchor: "x", automargin: false };
    if (zero) { const most = topOf(chart) || 1; layout[n ? `yaxis${n + 1}` : "yaxis"].range = [-.05 * most, 1.06 * most]; } // a line at 0 is seen, and is not the axis
    const known = chart.lines.filter((line) => !line.undone), color = (line) => COLORS[Math.max(0, known.indexOf(line)) % COLORS.length];
    const named = (line) => line.name.replace(/[<>&]/g, ""), short = (line) => narrow ? named(line).replace(/^GPU /, "") : named(line);
    const names = known.map((line) => `<span style="color:${color(line)}">■</span> ${short(line)}`);
    layout.annotations.push({ xref: "paper", yref: "paper", x: 0, y: top, xanchor: "left", yanchor: "bottom", showarrow: false, align: "left", text: `<b>${chart.title}</b>${chart.unit ? ` (${chart.unit})` : ""}  ${chart.lines.length > 1 ? names.join("  ") : ""}` });
    chart.lines.forEach((line) => { for (const points of [line, lonelyOf(line)]) if (points.x.length) traces.push({
      type: "scatter", mode: points === line ? "lines" : "markers", marker: { size: 4 }, name: line.name, yaxis: id, x: points.x.map((t) => t * 1000), y: points.y, connectgaps: false, // plotly reads numbers faster than dates
      hoverinfo: points === line ? undefined : "skip", customdata: points.step, hovertemplate: `${line.step ? "step %{customdata}: " : ""}%{y}<extra>${named(line)}</extra>`,
      line: { shape: zero ? "hv" : "linear", width: line.undone ? 1 : 1.6, color: line.undone ? "#999999" : color(line), dash: line.undone ? "dot" : DASHES[Math.max(0, known.indexOf(line)) % DASHES.length] }, opacity: line.undone ? .7 : 1,
    }); });
  });
  if (run.pods.length > 1) for (const pod of run.pods) {
    layout.shapes.push({ type: "line", xref: "x", yref: "paper", x0: iso(pod.from), x1: iso(pod.from), y0: 0, y1: 1, line: { width: 1, dash: "dash", color: ink } });
    layout.annotations.push({ xref: "x", yref: "paper", x: iso(pod.from), y: 0, xanchor: "left", yanchor: "bottom", showarrow: false, text: `pod ${pod.name.replace(/[<>&]/g, "")}` });
  }
  const marks = run.marks;
  traces.push({
    type: "scatter", mode: "markers", name: "", yaxis: "y", x: marks.map((one) => iso(one.t)), y: marks.map(() => topOf(run.charts[0])),
    text: marks.map((one) => fold(one.sentence)), hovertemplate: "%{text}<extra></extra>", cliponaxis: false,
    marker: { symbol: marks.map((one) => one.level === "info" ? "triangle-down-open" : "triangle-down"), size: 8, color: marks.map((one) => one.level === "error" ? "#d55e00" : one.level === "warning" ? "#e69f00" : "#0072b2") },
  });
  library.react(place, traces, layout, { displayModeBar: false, responsive: true, scrollZoom: false });
  $("legend").textContent = "UTC · grey: attempts · orange: incidents · dotted grey: trained again · ▼ what was said";
}
function lonelyOf(line) { // points between two gaps: as a line they would not be seen
  const at = line.y.map((y, n) => n).filter((n) => line.y[n] !== null && (line.y[n - 1] ?? null) === null && (line.y[n + 1] ?? null) === null);
  return { x: at.map((n) => line.x[n]), y: at.map((n) => line.y[n]), step: line.step && at.map((n) => line.step[n]) };
}
function topOf(chart) { return Math.max(0, ...chart.lines.flatMap((line) => line.y).filter((y) => y !== null)); }
function fold(text) { return text.replace(/[<>&]/g, "").replace(/(.{60,80}?)\s/g, "$1<br>").slice(0, 600); }

function showTime(run) {
  const bar = clear("time"), list = clear("times");
  bar.setAttribute("aria-label", run.time.map((one) => `${one.name} ${one.share}`).join(", "));
  run.time.forEach((one, n) => {
    const color = one.useful ? "#009e73" : OTHERS[n % OTHERS.length];
    const piece = add(bar, "div", null, { title: `${one.name}: ${one.words}, ${one.share}` });
    piece.style.flex = `${Math.max(one.seconds, 0)} 0 0`; piece.style.background = color;
    const line = add(list, "li"); add(line, "i").style.background = color; line.append(`${one.name}: ${one.share}, ${one.words}`);
  });
  if (!run.time.length) list.append("Not known yet.");
}
function showIncidents(run) {
  const place = $("incidents"), open = new Set([...place.querySelectorAll("details[open]")].map((one) => one.dataset.id));
  place.replaceChildren();
  if (!run.incidents.length) place.textContent = "None.";
  for (const one of run.incidents) {
    const box = add(place, "details", null, { "data-id": one.id }), head = add(box, "summary");
    box.open = open.has(String(one.id)); box.classList.toggle("open", !one.closed);
    add(head, "span", clock(one.opened), { class: "when" });
    head.append(`${one.sentence} ${one.closed ? `(${span(one.down_s)})` : "(open)"}`);
    for (const [title, lines] of [["Root cause", one.roots], ["What showed it", one.signals], ["What was done", one.done], ["Evidence", one.evidence]]) {
      if (lines && lines.length) { add(box, "p", title); const list = add(box, "ul"); for (const line of lines) add(list, "li", line); }
    }
    if (one.recovered_step) add(box, "p", `Training went on: step ${one.recovered_step}.`);
  }
}
function showSteps(run) {
  const body = $("steps").tBodies[0];
  body.replaceChildren();
  if (!run.steps.length) add(add(body, "tr"), "td", "None is known.", { colspan: 5 });
  const most = Math.min(run.steps.length, MOST_STEPS), count = frozen || allSteps ? most : Math.min(most, FEW_STEPS);
  for (const one of run.steps.slice(0, count)) {
    const row = add(body, "tr");
    for (const value of [one.step, one.here || "", one.store || "", one.gb === undefined ? "" : one.gb, one.told || ""]) add(row, "td", value);
  }
  if (count === most) return;
  const more = add(add(add(body, "tr"), "td", null, { colspan: 5 }), "button", `the newest ${most}`, { type: "button" });
  more.addEventListener("click", () => { allSteps = true; showSteps(run); });
}
function showLogNames(run) {
  const select = $("log-name"), known = [...select.options].map((one) => one.value);
  if (known.join("\n") === run.logs.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren();
  for (const name of run.logs) add(select, "option", name, { value: name });
  select.value = run.logs.includes(chosen) ? chosen : run.logs[0] || "";
  showLog();
}
let logText = "", logOpened = true;
async function showLog() {
  const name = $("log-name").value;
  if (!name || !shown) { $("log").textContent = "There is no log here."; return; }
  const answer = await fetch(`log.txt?run=${encodeURIComponent(shown)}&name=${encodeURIComponent(name)}`);
  logText = await answer.text();
  drawLog();
}
function drawLog() {
  const wanted = $("log-find").value, place = $("log");
  place.replaceChildren();
  const lines = wanted ? logText.split("\n").filter((line) => line.includes(wanted)) : [logText];
  for (const line of lines) {
    const parts = wanted ? line.split(wanted) : [line];
    parts.forEach((part, n) => { if (n) add(place, "mark", wanted); place.append(part); });
    if (wanted) place.append("\n");
  }
  if (logOpened || $("log-follow").checked) place.scrollTop = place.scrollHeight; // its newest lines first
  logOpened = false;
}

let last = null, curves = null, drawn = "";
function show(run) {
  last = run;
  $("run").hidden = false;
  showHead(run); showTime(run); showIncidents(run); showSteps(run);
  if (frozen) $("log").closest("section").hidden = true; else showLogNames(run);
}
async function draw(again) {
  if (!last || !curves) return;
  const bands = JSON.stringify([last.incidents.map((one) => [one.opened, one.closed]), last.pods]);
  if (!again && bands === drawn) return;
  drawn = bands;
  if (!library) { if (!window.Plotly) await plotly(); library = window.Plotly; }
  showCharts({ ...last, ...curves });
}
let loading = null;
function plotly() { return loading = loading || load("plotly.js"); }
async function ask(name) { // null: it did not change
  const answer = await fetch(`${name}.json?run=${encodeURIComponent(shown)}`, { headers: etags[name] ? { "if-none-match": etags[name] } : {} });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(await answer.text());
  const told = await answer.json();
  etags[name] = answer.headers.get("etag") || "";
  return told;
}
let busy = false;
async function refresh() {
  if (busy) return; // a slow line gets one question at a time
  busy = true;
  try {
    const run = await ask("run");
    toldAt = Date.now(); $("old").hidden = true;
    if (run) show(run);
    const told = await ask("charts");
    if (told) curves = told;
    await draw(Boolean(told));
    if ($("log-follow").checked) await showLog();
  } catch (error) {
    $("old").hidden = false; $("run").hidden = false;
    $("state").textContent = "unknown"; $("state").className = "alarm"; delete etags.run; // the next answer is shown whole
    $("old").textContent = `This page is old: no answer since ${toldAt ? `${clock(toldAt / 1000)} UTC` : "it was opened"}. What is below is from then. ${error.message}`;
  } finally { busy = false; }
}
async function begin() {
  for (const button of document.querySelectorAll("button[data-hours]")) button.addEventListener("click", () => {
    hours = Number(button.dataset.hours);
    for (const one of document.querySelectorAll("button[data-hours]")) one.setAttribute("aria-pressed", String(one === button));
    if (library) { library.purge($("charts")); draw(true); }
  });
  $("log-name").addEventListener("change", () => { logOpened = true; showLog(); }); $("log-find").addEventListener("input", drawLog);
  if (frozen) {
    curves = JSON.parse(frozen.textContent);
    show(curves); await draw(true);
    document.documentElement.dataset.height = Math.ceil(document.body.getBoundingClientRect().bottom); // of a picture
    return;
  }
  shown = new URLSearchParams(location.search).get("run");
  if (shown) { plotly().catch(() => {}); refresh(); } // the list may take longer; who draws says what is wrong
  let list = null;
  for ($("runs").textContent = "Looking for runs ..."; !list; ) {
    try { list = await askRuns(); }
    catch (error) { $("runs").textContent = `No answer, and asked again soon: ${error.message}`; await new Promise((done) => setTimeout(done, EVERY_MS)); }
  }
  if (list.fleet) {
    if (!shown) { await load("fleet.js"); clear("runs"); await showFleet(); return every(4 * EVERY_MS, showFleet); }
    const nav = clear("runs");
    nav.classList.add("back"); add(nav, "a", `← fleet ${list.fleet}`, { href: "." });
    return every(EVERY_MS, refresh);
  }
  if (!shown && list.runs.length === 1) { shown = list.runs[0].run; plotly().catch(() => {}); refresh(); }
  showRuns(list.runs);
  if (list.runs.length > 1) every(4 * EVERY_MS, () => askRuns().then((told) => showRuns(told.runs), () => {}));
  if (shown) every(EVERY_MS, refresh);
}
async function askRuns() {
  const answer = await fetch("runs.json");
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}
function showRuns(runs) {
  const nav = clear("runs");
  for (const run of runs) {
    const link = add(nav, "a", null, { href: `?run=${encodeURIComponent(run.run)}` });
    add(link, "strong", run.run); link.append(` ${run.sentence}`);
    if (run.run === shown) link.setAttribute("aria-current", "page");
  }
  nav.classList.toggle("one", runs.length === 1);
}
function every(ms, work) { setInterval(() => { if (!document.hidden) work(); }, ms); }
begin();
