"use strict";
// Who held how many workers when: for each type a band as high as its workers, in it the jobs, one on the other.
(() => {
  const W = D.words;
  const LEFT = 86, AXIS = 24, GAP = 22, MOST_JOBS = 60;
  // changes: [[t_s, job, type, workers]] in order; 0 workers end what a job held.
  D.allocation = ({ label, height }) => {
    let facts = { capacity: {}, changes: [], from: 0, to: 1, at: null, hues: null };
    let bands = [];
    const high = height || 110;
    const { canvas, begin } = D.canvas(() => 6 + Math.max(1, Object.keys(facts.capacity).length) * (high + GAP) + AXIS - GAP, label);
    canvas.tabIndex = 0;
    const under = D.el("div.under-picture");
    const prepare = () => {
      const held = new Map(), spent = new Map(), pieces = new Map();
      const end = (job, now) => {
        const before = held.get(job);
        if (!before) return;
        if (now > before.t) {
          if (!pieces.has(before.type)) pieces.set(before.type, []);
          pieces.get(before.type).push({ job, from: before.t, to: now, workers: before.workers });
          spent.set(job, (spent.get(job) || 0) + (now - before.t) * before.workers);
        }
        held.delete(job);
      };
      for (const [t, job, type, workers] of facts.changes) { end(job, t); if (workers > 0) held.set(job, { t, type, workers }); }
      for (const job of [...held.keys()]) end(job, facts.to);
      const named = [...spent.entries()].sort((a, b) => b[1] - a[1]).slice(0, MOST_JOBS).map(([job]) => job);
      const first = new Map();
      for (const list of pieces.values()) for (const piece of list) first.set(piece.job, Math.min(first.get(piece.job) ?? Infinity, piece.from));
      const order = named.sort((a, b) => first.get(a) - first.get(b) || (a < b ? -1 : 1));
      const rank = new Map(order.map((job, at) => [job, at]));
      bands = Object.keys(facts.capacity).map((type) => {
        const list = pieces.get(type) || [];
        const moments = [...new Set(list.flatMap((piece) => [piece.from, piece.to]))].sort((a, b) => a - b);
        const starts = [...list].sort((a, b) => a.from - b.from), now = [];
        let next = 0;
        const columns = moments.slice(0, -1).map((from, at) => {
          while (next < starts.length && starts[next].from <= from) now.push(starts[next++]);
          for (let i = now.length - 1; i >= 0; i--) if (now[i].to <= from) now.splice(i, 1);
          const parts = new Map();
          for (const piece of now) {
            const key = rank.has(piece.job) ? piece.job : "";
            parts.set(key, (parts.get(key) || 0) + piece.workers);
          }
          return { from, to: moments[at + 1], parts: [...parts.entries()].sort((a, b) => (rank.get(a[0]) ?? 1e9) - (rank.get(b[0]) ?? 1e9)) };
        });
        return { type, columns };
      });
      facts.rank = rank;
      facts.hue = facts.hues || rank;
    };
    const draw = () => {
      const { pen, width } = begin();
      const right = width - 8;
      const place = (t) => LEFT + (t - facts.from) / Math.max(1e-9, facts.to - facts.from) * (right - LEFT);
      bands.forEach((band, row) => {
        const top = 6 + row * (high + GAP), capacity = Math.max(1, facts.capacity[band.type]);
        pen.fillStyle = D.theme("faint");
        pen.fillRect(LEFT, top, right - LEFT, high);
        pen.textAlign = "left";
        pen.fillStyle = D.theme("ink");
        pen.fillText(D.shorten(band.type, pen, LEFT - 12), 0, top + high / 2 - 8);
        pen.fillStyle = D.theme("muted");
        pen.fillText(W.count(facts.capacity[band.type]), 0, top + high / 2 + 9);
        for (const column of band.columns) {
          const until = facts.at === null ? column.to : Math.min(column.to, facts.at);
          if (until <= column.from) continue;
          const x = place(column.from), wide = place(until) - x;
          let base = top + high;
          for (const [job, workers] of column.parts) {
            const tall = high * Math.min(1, workers / capacity);
            pen.fillStyle = job === "" ? D.theme("muted") : D.colour(facts.hue.get(job));
            pen.fillRect(x, base - tall, Math.max(0.7, wide + 0.3), tall);
            base -= tall;
            if (tall > 15 && wide > 34 && job !== "") {
              pen.fillStyle = D.inkOn(D.colour(facts.hue.get(job)));
              pen.fillText(D.shorten(`${job} ×${workers}`, pen, wide - 8), x + 4, base + tall / 2);
            }
            if (tall > 3) { pen.fillStyle = D.theme("card"); pen.fillRect(x, base, wide, 0.6); }
          }
        }
      });
      const bottom = 6 + bands.length * (high + GAP) - GAP;
      pen.fillStyle = D.theme("muted");
      pen.textAlign = "center";
      for (const tick of W.timeTicks(facts.from, facts.to, Math.max(2, (right - LEFT) / 90))) {
        const x = place(tick);
        pen.fillText(facts.tick ? facts.tick(tick) : W.moment(tick), Math.max(LEFT + 14, Math.min(right - 14, x)), bottom + AXIS / 2 + 2);
      }
      if (facts.at !== null) { pen.fillStyle = D.theme("alarm"); pen.fillRect(place(facts.at) - 1, 6, 2, bottom - 6); }
    };
    const tell = (moment) => {
      const words = bands.map((band) => {
        const column = band.columns.find((each) => each.from <= moment && moment < each.to);
        return `${band.type}: ` + (column ? column.parts.map(([job, workers]) => `${job || "others"} ${workers}`).join(", ") : "nobody");
      });
      under.textContent = `${facts.tick ? facts.tick(moment) : W.moment(moment)} · ${words.join(" · ")}`;
    };
    let cursor = null;
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect(), part = (event.clientX - box.left - LEFT) / (box.width - 8 - LEFT);
      if (part >= 0 && part <= 1) { cursor = facts.from + part * (facts.to - facts.from); tell(cursor); }
    });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      cursor = Math.max(facts.from, Math.min(facts.to, (cursor ?? facts.from) + step * (facts.to - facts.from) / 50));
      tell(cursor);
    });
    D.picture(canvas, draw);
    return {
      node: D.el("div", null, canvas, under),
      set: (changed) => { facts = { ...facts, ...changed }; prepare(); draw(); },
      play: (at) => { facts.at = at; draw(); if (at !== null) tell(at); },
    };
  };
})();
