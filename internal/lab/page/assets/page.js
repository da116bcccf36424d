"use strict";
// Draws the charts of one report. Everything shown is in `charts`; nothing is loaded.
(() => {
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = n => n == null ? "" : n.toLocaleString("en-US");
  const dashes = {dashed: [6, 4], dotted: [2, 3]};

  function draw(el, lines) {
    if (!el.clientWidth) return; // it is folded: drawn when it is opened
    el.textContent = "";
    lines = lines.filter(l => l.x && l.x.length);
    if (!lines.length) { el.textContent = "No data."; return; }
    const log = "log" in el.dataset;
    const data = uPlot.join(lines.map(l => [l.x, l.y]));
    const axis = {stroke: css("--muted"), grid: {stroke: css("--grid"), width: 1}, ticks: {stroke: css("--line"), width: 1},
      font: "12px Inter, system-ui, sans-serif"};
    const color = l => css(`--c${l.color % 8}`);
    const opts = {
      width: el.clientWidth, height: Math.min(300, Math.max(200, el.clientWidth * 0.6)), legend: {show: false},
      padding: [null, log ? 36 : null, null, null],
      cursor: {points: {size: 6}, drag: {x: true, y: false}},
      scales: {x: log ? {time: false, distr: 3} : {time: false, range: (_, lo, hi) => [Math.min(0, lo), hi]}, y: {range: (_, lo, hi) => [0, hi * 1.04 || 1]}},
      axes: [{...axis, values: (_, v) => v.map(x => x == null ? "" : number(x) + (el.dataset.unit || "")), size: 34},
             {...axis, values: (_, v) => v.map(number), size: 62}],
      series: [{}, ...lines.map(l => ({label: l.name, stroke: color(l), width: l.style ? 1.5 : 2.25, dash: dashes[l.style], spanGaps: true,
        points: {show: !!l.points, size: 5, fill: color(l)}}))],
    };
    const plot = new uPlot(opts, data, el);
    const legend = document.createElement("div");
    legend.className = "legend";
    const values = lines.map(l => {
      const item = document.createElement("span");
      const dash = l.style ? ` stroke-dasharray="${dashes[l.style].join(" ")}"` : "";
      item.innerHTML = `<svg width="22" height="8"><line x1="0" y1="4" x2="22" y2="4" stroke-width="2.5" style="stroke:var(--c${l.color % 8})"${dash}/></svg>`;
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
        v.textContent = idx == null ? "" : number(data[i + 1][k]);
      });
    });
    plot.over.addEventListener("mouseleave", () => values.forEach(v => { v.textContent = ""; }));
  }

  const all = () => document.querySelectorAll(".chart").forEach(el => draw(el, charts[+el.dataset.chart]));
  all();
  document.querySelectorAll("details").forEach(d => d.addEventListener("toggle", () => {
    if (d.open) d.querySelectorAll(".chart").forEach(el => draw(el, charts[+el.dataset.chart]));
  }));
  let timer;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(all, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
})();
