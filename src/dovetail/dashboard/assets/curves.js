"use strict";
// A curve over time: one or several lines, with marks where something happened.
(() => {
  const W = D.words;
  const synced = uPlot.sync("run");
  // lines: [{ name, x: [...], y: [...] }]; joined on one axis. marks: [{ at, text, isFault }].
  D.curve = ({ title, unit, show, across, height }) => {
    const holder = D.el("div.curve", { role: "img", "aria-label": title });
    const under = D.el("div.note");
    const card = D.card(title, holder, under);
    let plot = null, lines = [], marks = [], shape = "";
    const joined = () => {
      const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
      const place = new Map(xs.map((x, at) => [x, at]));
      return [xs, ...lines.map((line) => {
        const column = new Array(xs.length).fill(lines.length > 1 ? undefined : null);
        line.x.forEach((x, at) => { column[place.get(x)] = line.y[at]; });
        return column;
      })];
    };
    const drawMarks = (chart) => {
      const pen = chart.ctx, scale = devicePixelRatio || 1;
      pen.save();
      for (const mark of marks) {
        const x = chart.valToPos(mark.at, "x", true);
        if (!(x >= chart.bbox.left && x <= chart.bbox.left + chart.bbox.width)) continue;
        pen.strokeStyle = D.theme(mark.isFault ? "alarm" : "line");
        pen.lineWidth = (mark.isFault ? 1.5 : 1) * scale;
        pen.setLineDash(mark.isFault ? [] : [3 * scale, 3 * scale]);
        pen.beginPath(); pen.moveTo(x, chart.bbox.top); pen.lineTo(x, chart.bbox.top + chart.bbox.height); pen.stroke();
      }
      pen.restore();
    };
    const make = () => {
      if (plot) { plot.destroy(); plot = null; }
      const width = holder.clientWidth;
      if (!width || !lines.length) return;
      const axis = (more) => ({ stroke: D.theme("muted"), grid: { stroke: D.theme("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif", ...more });
      plot = new uPlot({
        width, height: height || 190, padding: [8, 8, 0, 0],
        cursor: { sync: { key: synced.key }, drag: { x: true, y: false }, points: { size: 6 } },
        legend: { show: true, live: true },
        scales: { x: { time: false } },
        axes: [axis({ values: (_, ticks) => ticks.map((tick) => across(tick)), space: 60, size: 28 }), axis({ values: (_, ticks) => ticks.map((tick) => show(tick)), size: 58 })],
        series: [{ label: "at", value: (_, value) => (value === null ? "–" : across(value)) },
          ...lines.map((line, at) => ({
            label: line.name, stroke: lines.length === 1 ? D.theme("accent") : D.colour(at), width: 1.75, spanGaps: lines.length > 1,
            points: { show: line.x.length < 2 }, value: (_, value) => (value === null || value === undefined ? "–" : show(value) + (unit ? " " + unit : "")),
          }))],
        hooks: { draw: [drawMarks] },
      }, joined(), holder);
    };
    D.picture(holder, make);
    const told = () => {
      const all = lines.flatMap((line) => line.y).filter(W.known);
      if (!all.length) return "no figures yet";
      const last = lines.map((line) => [...line.y].reverse().find(W.known)).filter(W.known);
      return `from ${show(Math.min(...all))} to ${show(Math.max(...all))}` + (lines.length === 1 ? `, last ${show(last[0])}` : "") + (unit ? " " + unit : "");
    };
    return {
      card,
      set: (newLines, newMarks) => {
        lines = newLines.filter((line) => line.y.some(W.known));
        marks = newMarks || [];
        const words = told();
        under.textContent = lines.length ? "" : words;
        holder.setAttribute("aria-label", title + ": " + words);
        const now = lines.map((line) => line.name).join("\n");
        if (plot && now === shape && lines.length) plot.setData(joined()); else { shape = now; make(); }
      },
    };
  };
})();
