"use strict";
// Draws the charts of one report. Everything shown is in `report`; nothing is loaded.
(() => {
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const label = run => {
    let s = run.system;
    const writes = run.settings && run.settings["manager writes in flight"];
    if (writes && writes !== "adaptive") s += " w=" + writes;
    if (run.repeat > 1) s += " #" + run.repeat;
    return run.gang ? s + ", gang" : s;
  };
  const thousands = n => n == null ? "" : n.toLocaleString("en-US");

  // lines of a chart: {name, t, n, color, dash, width}.
  function cumulative(runs) {
    const out = [];
    runs.forEach((run, i) => {
      const c = run.curves, color = `--c${i % 8}`, name = label(run);
      if (!c || !c.scheduled.t) return;
      const apart = c.created.t && run.scheduleSeconds - run.createSeconds > 0.02 * run.scheduleSeconds;
      if (apart) out.push({name: name + ": CREATED", t: [0, ...c.created.t], n: [0, ...c.created.n], color, dash: [5, 4], width: 1.5});
      out.push({name: name + (apart ? ": SCHEDULED" : ": CREATED = SCHEDULED"), t: [0, ...c.scheduled.t], n: [0, ...c.scheduled.n], color, width: 2.25});
      // One floor per system: its other runs' floors are the same writes.
      const first = runs.findIndex(r => r.system === run.system && r.floor && r.floor.curve) === i;
      if (first) out.push({name: "floor of " + name, t: [0, ...run.floor.curve.t], n: [0, ...run.floor.curve.n],
        color: runs.some(r => r.system !== run.system) ? color : "--floor", dash: [2, 3], width: 1.5});
    });
    return out;
  }
  // Whole seconds, as counted; a run of a few seconds in finer steps, out of its cumulative curve.
  function rates(runs) {
    const longest = Math.max(0, ...runs.map(r => r.scheduleSeconds || 0));
    const step = longest >= 8 ? 1 : [0.05, 0.1, 0.25, 0.5].find(s => longest / s <= 24) || 0.5;
    const out = [];
    runs.forEach((run, i) => {
      const c = run.curves;
      if (!c || !c.scheduled.t) return;
      let counts = c.scheduledPerSecond;
      if (step < 1) {
        counts = Array(Math.floor(run.scheduleSeconds / step) + 1).fill(0);
        c.scheduled.t.forEach((t, k) => { counts[Math.min(counts.length - 1, Math.floor(t / step))] += c.scheduled.n[k] - (c.scheduled.n[k - 1] || 0); });
      }
      // The last step is not a whole one: its rate is over the part that was used, if that is enough to tell.
      const part = run.scheduleSeconds / step - (counts.length - 1);
      const y = counts.map((v, k) => k < counts.length - 1 ? v / step : part >= 0.5 ? v / part / step : null);
      out.push({name: label(run), t: y.map((_, k) => (k + 0.5) * step), n: y.map(v => v == null ? v : Math.round(v)), color: `--c${i % 8}`,
        width: 2, points: y.length < 40});
    });
    return out;
  }

  function draw(el, lines) {
    el.textContent = "";
    if (!lines.length) { el.textContent = "No data."; return; }
    const data = uPlot.join(lines.map(l => [l.t, l.n]));
    const axis = {stroke: css("--muted"), grid: {stroke: css("--grid"), width: 1}, ticks: {stroke: css("--line"), width: 1},
      font: "12px Inter, system-ui, sans-serif"};
    const opts = {
      width: el.clientWidth, height: 300, legend: {show: false},
      cursor: {points: {size: 6}, drag: {x: true, y: false}},
      scales: {x: {time: false, range: (_, lo, hi) => [Math.min(0, lo), hi]}, y: {range: (_, lo, hi) => [0, hi * 1.04 || 1]}},
      axes: [{...axis, values: (_, v) => v.map(x => x + " s"), size: 34},
             {...axis, values: (_, v) => v.map(thousands), size: 62}],
      series: [{}, ...lines.map(l => ({label: l.name, stroke: css(l.color), width: l.width, dash: l.dash, spanGaps: true,
        points: {show: !!l.points, size: 5, fill: css(l.color)}}))],
    };
    const plot = new uPlot(opts, data, el);
    const legend = document.createElement("div");
    legend.className = "legend";
    const values = lines.map(l => {
      const item = document.createElement("span");
      const dash = l.dash ? ` stroke-dasharray="${l.dash.join(" ")}"` : "";
      item.innerHTML = `<svg width="22" height="8"><line x1="0" y1="4" x2="22" y2="4" stroke-width="2.5" style="stroke:var(${l.color})"${dash}/></svg>`;
      item.append(l.name);
      const value = document.createElement("b");
      item.append(value);
      legend.append(item);
      return value;
    });
    el.append(legend);
    // Under the pointer, each line's last known value.
    plot.over.addEventListener("mousemove", () => {
      const idx = plot.cursor.idx;
      values.forEach((v, i) => {
        let k = idx;
        while (k > 0 && data[i + 1][k] == null) k--;
        v.textContent = idx == null ? "" : thousands(data[i + 1][k]);
      });
    });
    plot.over.addEventListener("mouseleave", () => values.forEach(v => { v.textContent = ""; }));
    return plot;
  }

  function all() {
    for (const el of document.querySelectorAll(".chart")) {
      const runs = report.runs.filter(r => r.shape === el.dataset.shape);
      draw(el, el.dataset.chart === "rate" ? rates(runs) : cumulative(runs));
    }
  }
  all();
  let timer;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(all, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
})();
