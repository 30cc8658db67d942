// Behaviour of the pages that needs a script. Libraries: htmx, idiomorph and uPlot only.
"use strict";

// Theme: what the system prefers, unless the switch overrides it. Set first, so that no page flashes
// in the other colours.
const THEMES = ["auto", "dark", "light"];

function theme() {
  try {
    return THEMES.includes(localStorage.theme) ? localStorage.theme : "auto";
  } catch {
    return "auto";
  }
}

function showTheme() {
  const wanted = theme();
  if (wanted === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = wanted;
  const button = document.getElementById("theme");
  if (button) {
    button.hidden = false;
    button.textContent = `Theme: ${wanted}`;
  }
}

showTheme();

function nextTheme() {
  try {
    localStorage.theme = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  } catch {
    return; // a browser without storage
  }
  showTheme();
  drawCharts(document.body, true);
}

// Live parts refresh at every tick. A hidden tab sends no requests.
function startTicking() {
  const tick = () => {
    if (!document.hidden) document.body.dispatchEvent(new Event("tick"));
  };
  setInterval(tick, Number(document.body.dataset.interval) * 1000);
  document.addEventListener("visibilitychange", tick);
}

function watchConnection() {
  const silence = (isSilent) => {
    const notice = document.getElementById("silence");
    if (notice) notice.hidden = !isSilent;
  };
  document.body.addEventListener("htmx:sendError", () => silence(true));
  document.body.addEventListener("htmx:timeout", () => silence(true));
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.xhr && event.detail.xhr.status) silence(false);
  });
  document.body.addEventListener("htmx:configRequest", (event) => {
    const token = document.querySelector('meta[name="csrf"]');
    if (event.detail.verb !== "get" && token) event.detail.headers["X-CSRF-Token"] = token.content;
  });
}

// State that survives a refresh: expanded details, text that is being typed, and charts, which get
// their new data instead of being drawn again.
function preserveState() {
  if (!window.Idiomorph) return;
  const defaults = window.Idiomorph.defaults;
  // Idiomorph would leave all of the active element as it is; only what is being typed must stay.
  Object.defineProperty(defaults, "ignoreActiveValue", {
    get: () => Boolean(document.activeElement?.matches("input, select, textarea")),
    enumerable: true,
  });
  defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !(name === "open" && node.tagName === "DETAILS");
  defaults.callbacks.beforeNodeMorphed = (before, after) => {
    if (!(before instanceof HTMLElement) || !before.dataset.chart || !after.dataset) return true;
    before.dataset.chart = after.dataset.chart || "";
    drawChart(before);
    return false;
  };
}

// Charts
const plots = new WeakMap();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A date whose local fields are the server's time, as in the tables and forms of the page.
function serverDate(atS) {
  const at = new Date(atS * 1000);
  const shiftMin = Number(document.body.dataset.utcOffset) + at.getTimezoneOffset();
  return new Date(at.getTime() + shiftMin * 60_000);
}

// 24 hours, as in the rest of the page.
function clock(atS, stepS) {
  const at = serverDate(atS);
  if (stepS >= 86400) return `${at.getMonth() + 1}-${at.getDate()}`;
  return at.toTimeString().slice(0, stepS < 60 ? 8 : 5);
}

const POWERS_OF_2 = Array.from({ length: 60 }, (_, power) => 2 ** power);

// A value in the unit of its plot, as web/rendering.py writes it.
function figure(value, unit) {
  const round = (number) => (Math.abs(number) >= 100 ? Math.round(number) : Number(number.toPrecision(3)));
  if (unit === "B") {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const step = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), units.length - 1);
    return `${round(value / 1024 ** step)} ${units[step]}`;
  }
  if (unit === "ms" || unit === "s") {
    const seconds = unit === "ms" ? value / 1000 : value;
    if (!seconds) return "0";
    if (seconds < 1) return `${round(seconds * 1000)} ms`;
    if (seconds < 120) return `${round(seconds)} s`;
    if (seconds < 7200) return `${round(seconds / 60)} min`;
    return `${round(seconds / 3600)} h`;
  }
  const text = Math.abs(value) >= 1e6 ? `${round(value / 1e6)}M` : round(value).toLocaleString("en");
  return unit === "/s" ? `${text}/s` : text;
}

function drawChart(element, again = false) {
  if (!window.uPlot || !element.dataset.chart) return;
  const { x, series, unit } = JSON.parse(element.dataset.chart);
  const data = [x, ...series.map((line) => line.y)];
  const existing = plots.get(element);
  const labels = series.map((line) => line.label).join("\n") + unit;
  if (existing && existing.labels === labels && !again) {
    existing.plot.setData(data);
    return;
  }
  if (existing) existing.plot.destroy();
  const colours = ["--accent", "--warn", "--good", "--bad", "--muted"].map(colour);
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  const options = {
    width: element.clientWidth || 300,
    height: (element.clientHeight || 192) - (series.length > 1 ? 32 : 0), // for the legend
    legend: { show: series.length > 1 },
    cursor: { y: false },
    tzDate: serverDate, // ticks at its full minutes and hours
    axes: [{ ...axis, values: (plot, at, index, space, step) => at.map((second) => clock(second, step)) }, { ...axis, size: 64, ...(unit === "B" ? { incrs: POWERS_OF_2 } : {}), values: (plot, at) => at.map((value) => figure(value, unit)) }],
    scales: { y: { range: (plot, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
    series: [
      { label: "Time", value: (plot, at) => (at == null ? "--" : clock(at, 1)) },
      ...series.map((line, index) => ({
        label: line.label,
        value: (plot, value) => (value == null ? "--" : figure(value, unit)),
        stroke: colours[index % colours.length],
        width: 1.75,
        points: { show: false },
      })),
    ],
  };
  plots.set(element, { plot: new window.uPlot(options, data, element), labels });
}

function drawCharts(root, again = false) {
  for (const element of root.querySelectorAll("[data-chart]")) drawChart(element, again);
}

// Live tail: new records go to the top, and the oldest beyond MOST_ROWS are removed. A hidden tab
// gets no events; when it is shown again it continues after its last position, and shows how many
// records it has missed.
const MOST_ROWS = 500;

function startTail(list) {
  const state = document.getElementById("tail-state");
  const count = document.getElementById("tail-count");
  const pause = document.getElementById("tail-pause");
  let source = null;
  let after = "";
  let shown = 0;
  let leftOut = 0;
  let isPaused = false;

  const showState = (kind, text) => {
    // Not a part of the state: a screen reader would read out every number.
    const left = leftOut ? `; ${leftOut.toLocaleString("en")} were skipped` : "";
    count.textContent = shown || leftOut ? `${shown.toLocaleString("en")} records so far${left}` : "";
    if (state.textContent === text) return;
    const status = document.createElement("span");
    status.className = `status ${kind}`;
    status.textContent = text;
    state.replaceChildren(status);
  };
  const stop = () => {
    if (source) source.close();
    source = null;
  };
  const start = () => {
    if (source || isPaused || document.hidden) return;
    source = new EventSource(`${list.dataset.tail}&after=${after}`);
    source.addEventListener("records", (event) => {
      const news = JSON.parse(event.data);
      after = news.after;
      shown += news.records;
      leftOut += news.left_out;
      list.insertAdjacentHTML("afterbegin", news.html);
      for (let index = 0; index < news.records; index += 1) {
        if (window.htmx && list.children[index]) window.htmx.process(list.children[index]);
      }
      while (list.children.length > MOST_ROWS) list.lastElementChild.remove();
      showState("good", "following");
    });
    source.addEventListener("trouble", (event) => {
      showState("bad", `${JSON.parse(event.data).what}; retrying`);
      stop();
      setTimeout(start, 2000);
    });
    source.addEventListener("error", () => {
      showState("bad", "no connection; retrying");
      stop();
      setTimeout(start, 2000);
    });
  };
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Resume" : "Pause";
    if (isPaused) {
      stop();
      showState("idle", "paused");
    } else start();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  window.addEventListener("pagehide", stop);
  start();
}

// Copying a command
async function copy(button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select it and copy";
  }
  setTimeout(() => {
    button.textContent = label;
  }, 1500);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.id === "theme") nextTheme();
  if (button.dataset.copy !== undefined) copy(button);
});

document.addEventListener("DOMContentLoaded", () => {
  showTheme();
  startTicking();
  watchConnection();
  preserveState();
  drawCharts(document.body);
  document.body.addEventListener("htmx:load", (event) => drawCharts(event.detail.elt));
  const tail = document.querySelector("[data-tail]");
  if (tail) startTail(tail);
  window.addEventListener("resize", () => drawCharts(document.body, true));
});
