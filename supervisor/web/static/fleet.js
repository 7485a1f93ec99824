"use strict";
// The page of a fleet; page.js loads it and has what both use.
let fleetTag = "";
function dollars(value) { return value === null || value === undefined ? "?" : value.toFixed(2); }
function kind(one) { return one.spot ? "spot" : (one.at || "").startsWith("ssh/") ? "own" : "on demand"; }
function rows(id, list, cells) {
  const table = $(id);
  table.closest("section").hidden = !list.length;
  table.tBodies[0].replaceChildren();
  for (const one of list) {
    const row = add(table.tBodies[0], "tr");
    for (const cell of cells(one)) {
      if (cell instanceof Array) add(row, "td", cell[0], { class: cell[1] }); else add(row, "td", cell);
    }
  }
}
function limit(place, title, value, most, words, near) {
  const box = add(place, "div", null, { class: near ? "limit near" : "limit" });
  add(box, "p", `${title}: ${words}`);
  const bar = add(box, "div", null, { class: "stack", role: "img", "aria-label": `${title}: ${words}` }), part = add(bar, "div");
  part.style.width = `${Math.min(100, most ? 100 * value / most : 0)}%`;
}
function showMoney(m) {
  const place = clear("fleet-money"), lasts = m.lasts_s === null ? "" : `; the rest lasts ${span(m.lasts_s)} at this price`;
  limit(place, "Spent", m.spent, m.total, `$${dollars(m.spent)} of $${dollars(m.total)}${lasts}`, m.spent >= .9 * m.total);
  limit(place, "An hour", m.per_hour, m.most_per_hour, `$${dollars(m.per_hour)} of $${dollars(m.most_per_hour)}`, m.per_hour >= m.most_per_hour);
  limit(place, "Pods made within the last hour", m.creates, m.most_creates, `${m.creates} of ${m.most_creates}`, m.creates >= m.most_creates);
  if (m.until) add(place, "p", `No pod is rented after ${clock(m.until)} UTC.`, { class: "soft" });
}
async function showFleet() {
  try {
    const answer = await fetch("fleet.json", { headers: fleetTag ? { "if-none-match": fleetTag } : {} });
    if (answer.status === 304) return;
    if (!answer.ok) throw new Error(await answer.text());
    fleetTag = answer.headers.get("etag") || "";
    drawFleet(await answer.json());
  } catch (error) { $("fleet-told").textContent = `This page is old: ${error.message}`; }
}
function drawFleet(fleet) {
  $("fleet").hidden = false;
  document.title = `fleet ${fleet.fleet}`;
  $("fleet-name").textContent = `fleet ${fleet.fleet}`; $("fleet-sentence").textContent = fleet.sentence;
  $("fleet-told").textContent = fleet.written_at ? `What its controller wrote by ${clock(fleet.written_at)} UTC.` : "";
  showMoney(fleet.money);
  rows("fleet-runs", fleet.runs, (one) => [one.name, [one.state, one.state === "needs a person" ? "bad" : ""], one.step === null ? "" : `step ${one.step}`, `$${dollars(one.dollars)}`, [dollars(one.per_useful_hour), "wide"], [`${one.said_at ? `${clock(one.said_at)} ` : ""}${one.sentence}`, "text"]]);
  [...$("fleet-runs").tBodies[0].rows].forEach((row, n) => {
    const one = fleet.runs[n];
    if (!one.in_file) return;
    row.cells[0].replaceChildren(); add(row.cells[0], "a", one.name, { href: `?run=${encodeURIComponent(one.run)}` });
  });
  rows("fleet-pods", fleet.pods, (one) => [one.pod, one.run, one.phase, one.place, one.gpus || "", clock(one.since), dollars(one.per_hour), one.bid || "", one.step === null || one.step === undefined ? "" : one.step, one.unpublished === null ? "unknown" : (one.unpublished || []).map((step) => `step ${step}`).join(", "), one.dollars === undefined ? "" : dollars(one.dollars)]);
  rows("fleet-places", fleet.places, (one) => [one.place, one.at, one.gpus, kind(one), one.most_per_hour === null ? "" : dollars(one.most_per_hour), one.pods, one.useful === null ? "?" : `${(100 * one.useful).toFixed(1)} %`, [one.closed, "text"]]);
  rows("fleet-offers", fleet.offers, (one) => [one.place, one.gpus, dollars(one.per_hour), kind(one), one.machine, one.region, one.since ? clock(one.since) : "", clock(one.seen_at)]);
  rows("fleet-faults", fleet.faults, (one) => [one.machine, one.count, clock(one.last)]);
  rows("fleet-ended", fleet.ended, (one) => [one.pod, one.run, one.place, one.gpus, one.machine, clock(one.since), clock(one.ended), dollars(one.dollars), one.how]);
  const notes = clear("fleet-notes");
  for (const note of fleet.notes) add(notes, "li", note);
}
