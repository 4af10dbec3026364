"use strict";
// One table at a time: choose it, filter it, click a heading to sort. Values with an interval take one column.
const data = JSON.parse(document.getElementById("data").textContent);
for (const table of Object.values(data)) {
  const filled = (row) => table.keys.map((key, i) => [key, row[i]]).filter(([, value]) => value !== null && value !== "");
  table.rows = table.rows.map((row) => Object.fromEntries(filled(row)));
}
const state = { table: Object.keys(data)[0], sort: null, up: true, filters: {}, text: "" };
const CHOICES = ["problem", "group"];
const HIDDEN = /(_low|_high|_verdict)$/;
const START = { summary: "carried euler", named: "excess euler", aligned: "versus", effective: "versus" };

function columns(rows) {
  const seen = new Set();
  for (const row of rows) for (const key of Object.keys(row)) if (!HIDDEN.test(key)) seen.add(key);
  return [...seen];
}

function visible() {
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  return data[state.table].rows.filter((row) =>
    Object.entries(state.filters).every(([key, value]) => value === "" || row[key] === undefined || String(row[key]) === value) &&
    words.every((word) => `${row.family ?? ""} ${row.rule ?? ""} ${row.problem ?? ""}`.toLowerCase().includes(word)));
}

function sorted(rows) {
  const key = state.sort;
  const sign = state.up ? 1 : -1;
  return [...rows].sort((a, b) => {
    const [x, y] = [a[key], b[key]];
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined); // gaps last, both ways
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
  });
}

const short = (v) => (v === 0 ? "0" : Math.abs(v) >= 1e4 || Math.abs(v) < 1e-3 ? v.toExponential(1) : String(Number(v.toPrecision(3))));

function cell(row, key) {
  const td = document.createElement("td");
  const value = row[key];
  if (typeof value !== "number") {
    td.textContent = value === undefined ? "–" : value === true ? "yes" : value === false ? "no" : value;
    if (key === "rule") { td.className = "rule"; td.title = value ?? ""; }
    return td;
  }
  td.className = "number " + (row[`${key}_verdict`] ?? "");
  td.append(short(value));
  if (row[`${key}_low`] !== undefined && row[`${key}_high`] !== undefined) {
    const band = document.createElement("small");
    band.textContent = ` [${short(row[`${key}_low`])}, ${short(row[`${key}_high`])}]`;
    td.append(band);
  }
  if (row[`${key}_verdict`]) td.title = `${row[`${key}_verdict`]} by the paired difference`;
  return td;
}

function draw() {
  const { title, rows } = data[state.table];
  const keys = columns(rows);
  if (!keys.includes(state.sort)) { state.sort = START[state.table] ?? keys[0]; state.up = true; }
  document.getElementById("about").textContent = title;
  const head = document.createElement("tr");
  for (const key of keys) {
    const th = document.createElement("th");
    const button = document.createElement("button");
    const own = key === state.sort;
    button.type = "button";
    button.textContent = key.replaceAll("_", " ") + (own ? (state.up ? " ▲" : " ▼") : "");
    button.onclick = () => { state.up = own ? !state.up : true; state.sort = key; draw(); };
    th.setAttribute("aria-sort", own ? (state.up ? "ascending" : "descending") : "none");
    th.append(button);
    head.append(th);
  }
  document.querySelector("#frame thead").replaceChildren(head);
  const shown = sorted(visible());
  document.querySelector("#frame tbody").replaceChildren(...shown.map((row) => {
    const tr = document.createElement("tr");
    tr.className = row.group ?? "";
    tr.append(...keys.map((key) => cell(row, key)));
    return tr;
  }));
  document.getElementById("count").textContent = `${shown.length} of ${rows.length} rows`;
}

function filters() {
  const form = document.getElementById("filters");
  const rows = data[state.table].rows;
  const parts = CHOICES.filter((key) => rows.some((row) => row[key] !== undefined)).map((key) => {
    const label = document.createElement("label");
    const select = document.createElement("select");
    const values = [...new Set(rows.map((row) => row[key]).filter((v) => v !== undefined))];
    if (key === "scale") {
      values.sort((a, b) => a - b);
      if (values.length > 40) return null;
    }
    select.append(new Option("all", ""), ...values.map((v) => new Option(String(v), String(v))));
    select.value = values.map(String).includes(state.filters[key]) ? state.filters[key] : "";
    state.filters[key] = select.value;
    select.onchange = () => { state.filters[key] = select.value; draw(); };
    label.append(key, select);
    return label;
  }).filter(Boolean);
  const label = document.createElement("label");
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "cap, apg, …";
  input.value = state.text;
  input.oninput = () => { state.text = input.value; draw(); };
  label.append("search", input);
  form.replaceChildren(...parts, label);
}

function tabs() {
  document.getElementById("tabs").replaceChildren(...Object.keys(data).map((name) => {
    const button = document.createElement("button");
    button.type = "button";
    button.role = "tab";
    button.textContent = name.replaceAll("_", " ");
    button.setAttribute("aria-selected", String(name === state.table));
    button.onclick = () => { state.table = name; state.sort = null; state.filters = {}; tabs(); filters(); draw(); };
    return button;
  }));
}

document.getElementById("filters").onsubmit = (event) => event.preventDefault();
tabs();
filters();
draw();
