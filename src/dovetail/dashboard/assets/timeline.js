"use strict";
// What every worker did when: a canvas to move and to enlarge, by pointer, by buttons and by keys.
(() => {
  const W = D.words;
  const COLOURS = { compute: "#0072b2", reduce: "#009e73", wait: "#d9a08a", read: "#cc79a7", fetch: "#56b4e9", send: "#e69f00" };
  const OWN = ["compute", "reduce", "wait"];
  const LEFT = 96, TOP = 4, ROW = 40, AXIS = 24;
  // Returns its card, and `refresh`, which takes in what has come since: where all was shown, all is shown again.
  D.timeline = (name, facts, marks) => {
    const { canvas, begin } = D.canvas(() => TOP + ROW * facts.workers.length + AXIS,
      `Timeline of ${W.plural(facts.workers.length, "worker")} over ${W.seconds(facts.to_s - facts.from_s)}. Arrow keys move it, plus and minus enlarge it, 0 shows all.`);
    canvas.tabIndex = 0;
    const under = D.el("div.under-picture", { text: "" });
    let from = facts.from_s, to = facts.to_s, got = null, asked = 0, waiting = false;
    const zero = facts.from_s, used = D.el("div");
    const colourOf = (kind) => COLOURS[facts.kinds[kind]];
    const draw = () => {
      const { pen, width, tall } = begin();
      const place = (moment) => LEFT + (moment - from) / (to - from) * (width - LEFT);
      const bottom = TOP + ROW * facts.workers.length;
      pen.fillStyle = D.theme("muted");
      pen.textAlign = "center";
      for (const tick of W.ticks(from - zero, to - zero, Math.max(2, (width - LEFT) / 90))) {
        const x = place(tick + zero);
        if (x < LEFT + 14 || x > width - 14) continue;
        pen.fillText(W.seconds(tick), x, bottom + AXIS / 2 + 2);
        pen.fillRect(Math.round(x), bottom, 1, 4);
      }
      facts.workers.forEach((worker, row) => {
        const y = TOP + ROW * row;
        pen.fillStyle = D.theme("faint");
        pen.fillRect(LEFT, y + 3, width - LEFT, ROW - 6);
        pen.fillStyle = D.theme("ink");
        pen.textAlign = "left";
        pen.fillText(D.shorten(worker, pen, LEFT - 10), 0, y + ROW / 2);
      });
      pen.save();
      pen.beginPath(); pen.rect(LEFT, 0, width - LEFT, tall); pen.clip();
      const rowOf = (worker) => facts.workers.indexOf(worker);
      if (got && got.spans) {
        for (const [worker, kind, start, end] of got.spans) {
          const x = place(start), own = OWN.includes(facts.kinds[kind]), y = TOP + ROW * rowOf(got.workers[worker]);
          pen.fillStyle = colourOf(kind);
          pen.fillRect(x, y + (own ? 4 : ROW - 13), Math.max(0.6, place(end) - x), own ? 22 : 8);
        }
      } else if (got && got.bins) {
        got.bins.forEach((kinds, worker) => {
          const y = TOP + ROW * rowOf(got.workers[worker]);
          const count = kinds[0].length, step = (got.to_s - got.from_s) / count;
          for (let bin = 0; bin < count; bin++) {
            const x = place(got.from_s + bin * step), wide = place(got.from_s + (bin + 1) * step) - x + 0.4;
            let base = y + 26;
            kinds.forEach((parts, kind) => {
              const own = OWN.includes(facts.kinds[kind]);
              const high = parts[bin] * (own ? 22 : 8);
              if (high < 0.05) return;
              pen.fillStyle = colourOf(kind);
              if (own) { const h = Math.min(high, base - (y + 4)); pen.fillRect(x, base - h, wide, h); base -= h; }
              else { pen.globalAlpha = Math.min(1, parts[bin] + 0.15); pen.fillRect(x, y + ROW - 13, wide, 8); pen.globalAlpha = 1; }
            });
          }
        });
      }
      for (const mark of marks()) {
        if (!W.known(mark.unix_s)) continue;
        pen.fillStyle = D.theme(mark.isFault ? "alarm" : "muted");
        pen.fillRect(Math.round(place(mark.unix_s)), TOP, mark.isFault ? 2 : 1, bottom - TOP);
      }
      pen.restore();
    };
    const fetchWindow = async () => {
      if (waiting) { asked++; return; }
      waiting = true;
      const number = asked;
      try {
        got = await D.source.timeline(name, from, to);
        if (got.whole) {
          const wasAll = from <= facts.from_s && to >= facts.to_s, grew = got.whole.to_s > facts.to_s;
          facts = got.whole;
          if (grew) drawUsed();
          if (grew && wasAll) { to = facts.to_s; tell(); asked++; }
        }
        draw();
      } catch (problem) { under.textContent = problem.message; }
      waiting = false;
      if (asked !== number) fetchWindow();
    };
    const tell = () => { under.textContent = `${W.seconds(from - zero)} to ${W.seconds(to - zero)}: ${W.seconds(to - from)}`; };
    const go = (newFrom, newTo) => {
      const length = Math.max(1e-4, Math.min(newTo - newFrom, facts.to_s - facts.from_s));
      from = Math.max(facts.from_s, Math.min(newFrom, facts.to_s - length));
      to = from + length;
      tell();
      draw();
      fetchWindow();
    };
    const zoom = (factor, part = 0.5) => { const at = from + part * (to - from); go(at - part * (to - from) * factor, at + (1 - part) * (to - from) * factor); };
    const pan = (part) => go(from + part * (to - from), to + part * (to - from));
    const whole = () => go(facts.from_s, facts.to_s);
    const partAt = (event) => { const box = canvas.getBoundingClientRect(); return (event.clientX - box.left - LEFT) / (box.width - LEFT); };
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;
      event.preventDefault();
      if (event.shiftKey) pan(Math.sign(event.deltaY || event.deltaX) * 0.15); else zoom(event.deltaY > 0 ? 1.3 : 1 / 1.3, Math.max(0, Math.min(1, partAt(event))));
    }, { passive: false });
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, from, to }; canvas.setPointerCapture(event.pointerId); canvas.focus({ preventScroll: true }); });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged) {
        const moved = (event.clientX - dragged.x) / (canvas.clientWidth - LEFT) * (dragged.to - dragged.from);
        if (Math.abs(event.clientX - dragged.x) > 2) go(dragged.from - moved, dragged.to - moved);
        return;
      }
      const moment = from + partAt(event) * (to - from), box = canvas.getBoundingClientRect();
      const worker = facts.workers[Math.floor((event.clientY - box.top - TOP) / ROW)];
      if (!got || !got.spans || worker === undefined || moment < from) { return; }
      const here = got.spans.filter((span) => got.workers[span[0]] === worker && span[2] <= moment && span[3] >= moment);
      under.textContent = `${W.seconds(moment - zero)}, ${worker}: ` + (here.map((span) => `${facts.kinds[span[1]]} ${W.seconds(span[3] - span[2])}, step ${span[4]}`).join("; ") || "nothing");
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { dragged = null; });
    canvas.addEventListener("keydown", (event) => {
      const act = { ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: whole,
        Home: () => go(facts.from_s, facts.from_s + to - from), End: () => go(facts.to_s - (to - from), facts.to_s) }[event.key];
      if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
    });
    D.picture(canvas, draw);
    requestAnimationFrame(whole);
    const drawUsed = () => {
      const kinds = facts.kinds.filter((_, kind) => facts.seconds.some((row) => row[kind] > 0));
      D.clear(used, D.table("Seconds of each worker", ["worker", ...kinds.map((kind) => "#" + kind)],
        facts.workers.map((worker, row) => [worker, ...kinds.map((kind) => W.seconds(facts.seconds[row][facts.kinds.indexOf(kind)]))])));
    };
    drawUsed();
    const card = D.card("Timeline",
      D.el("div.buttons", null,
        D.button("Enlarge", () => zoom(0.5), "quiet.small"), D.button("Reduce", () => zoom(2), "quiet.small"),
        D.button("Back", () => pan(-0.5), "quiet.small"), D.button("On", () => pan(0.5), "quiet.small"),
        D.button("Last tenth", () => go(facts.to_s - (facts.to_s - facts.from_s) / 10, facts.to_s), "quiet.small"), D.button("All", whole, "quiet.small")),
      D.key(Object.entries(COLOURS)), canvas, under,
      D.el("p.note", { text: "Computing, reducing and waiting are a worker's own time; reading, fetching and sending, in the thin lane, go on beside it. Drag to move; with the picture in focus, the wheel, + and - enlarge." + (facts.left_out_bytes ? ` The first ${W.bytes(facts.left_out_bytes)} of the file are left out.` : "") }), used);
    return { card, refresh: fetchWindow };
  };
})();
