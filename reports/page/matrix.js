// The table: themes expand into rows, rows into a grid of their axes and single cases. Only expanded
// rows are built, and of many rows one portion in each frame.
"use strict";

const PORTION = 5; // ms of building rows in a frame; layout takes as long again
const EXPANDED_ROWS = 40; // themes expand by themselves while the query selects no more rows
const EXPANDED_CASES = 16; // rows expand by themselves while it selects no more cases
const [LEAST_CELL, DENSE_CELL, MOST_CELL] = [6.9, 9.5, 11]; // rem: the width of a target's column
const [LEAST_NAMES, SMALL_NAMES, NAMES] = [10, 14, 26]; // rem: of the names, beside many and beside few columns
const ALIKE = 8; // so many cases of a row that die in the same way are folded into one

class Matrix {
  #rows = null; // generator of the rows still to be built
  #pending = 0;

  /**
   * `open(number, column, from, siblings)` opens a cell, `fold(id, open)` a theme or row, and
   * `unfold(series, open)` shows a column for each release of a series.
   */
  constructor(table, cells, { open, fold, unfold }) {
    this.table = table;
    new ResizeObserver(() => this.fit()).observe(table.parentElement);
    addEventListener("scroll", () => this.#keepHeads(), { passive: true });
    this.cells = cells;
    this.current = ""; // "COLUMN ROW-ID" of the one cell that the tab key reaches
    table.addEventListener("click", (event) => {
      const folding = event.target.closest(".fold");
      const cell = event.target.closest("button.v");
      const shown = event.target.closest("[data-all]");
      const releases = event.target.closest("[data-series]");
      if (releases) unfold(releases.dataset.series, releases.getAttribute("aria-expanded") !== "true");
      if (folding) fold(folding.closest("tr").id, folding.getAttribute("aria-expanded") !== "true");
      if (shown) this.#showAll(shown);
      if (!cell) return;
      this.#setTabStop(cell);
      open(Number(cell.dataset.case), Number(cell.dataset.column), cell, this.siblings(cell));
    });
    table.addEventListener("keydown", (event) => this.#move(event));
    table.addEventListener("focusin", (event) => {
      if (event.target.matches(".v, .fold, th a, [data-all]")) this.#setTabStop(event.target);
    });
  }

  /** Shows a query; `selection` is what `Cells.select` returned for it. */
  show(query, selection) {
    const focused = this.table.contains(document.activeElement) ? this.#place(document.activeElement) : null;
    this.query = query;
    this.selection = selection;
    cancelAnimationFrame(this.#pending);
    const number = selection.columns.length;
    this.table.classList.toggle("few", number < 4);
    document.body.classList.toggle("wide", number > 3);
    this.fit();
    for (const part of [...this.table.tBodies, this.table.tHead]) part?.remove();
    this.table.append(this.#head());
    this.#rows = this.#rowGenerator();
    this.#buildRows(PORTION);
    this.#keepHeads();
    this.#current()?.setAttribute("tabindex", "0");
    if (focused) this.#current(focused)?.focus({ preventScroll: true });
  }

  /** Divides the room between names and cells. A table that needs more scrolls in its box. */
  fit() {
    const room = this.table.parentElement.clientWidth; // px
    const number = this.selection?.columns.length ?? 0;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const cell = Math.max(LEAST_CELL, Math.min(MOST_CELL, (room / rem - NAMES) / number));
    const least = number > 3 ? LEAST_NAMES + LEAST_CELL * number : 0;
    this.table.style.setProperty("--cell", `${cell}rem`);
    this.table.classList.toggle("dense", number > 3 && cell < DENSE_CELL);
    document.documentElement.style.setProperty("--table", `${SMALL_NAMES + LEAST_CELL * number}rem`); // the panel leaves it room
    this.table.style.minWidth = `${least}rem`;
    this.table.parentElement.classList.toggle("scrolls", least * rem > room);
    this.#keepHeads();
  }

  /** Keeps the heads on the screen in a box that scrolls, where they cannot be sticky. */
  #keepHeads() {
    const head = this.table.tHead;
    if (!head) return;
    const { top, height } = this.table.getBoundingClientRect();
    const down = this.table.parentElement.matches(".scrolls") ? Math.min(-top, height - head.offsetHeight) : 0;
    head.style.transform = down > 0 ? `translateY(${down}px)` : "";
  }

  /** The row of a theme, an entry or a case, built if it is pending; null if it is not shown. */
  row(id) {
    if (!this.#byId(id)) this.#buildRows(Infinity);
    return this.#byId(id);
  }

  /** Looks in the rows only: any other part of the page may have the same id. */
  #byId(id) {
    return [...this.table.rows].find((row) => row.id === id) ?? null;
  }

  /** The first row that is on the screen, below the heads; null if none is. */
  rowOnScreen() {
    const heads = [...this.table.tHead.rows[0].cells].at(-1).getBoundingClientRect().bottom;
    const below = [...this.table.rows].find((row) => row.id && row.getBoundingClientRect().bottom > Math.max(0, heads));
    return below && isOnScreen(below) ? below : null;
  }

  /** The cell of a case on a target, if its row is shown. */
  cell(number, column) {
    return $(`button[data-column="${column}"]`, this.row(this.cells.cases[number].id) ?? make("tr"));
  }

  /** Marks the cells of a case on a target, in its row and in the grid of axes. */
  mark(number = null, column = null) {
    for (const cell of $$("[aria-current]", this.table)) cell.removeAttribute("aria-current");
    if (number == null) return;
    const cells = $$(`[data-case="${number}"][data-column="${column}"]`, this.table);
    for (const cell of cells.filter((one) => !one.matches(".tally"))) cell.setAttribute("aria-current", "true");
  }

  /** The cases to step through from a cell: the selected ones of its row that ran on its target. */
  siblings(cell) {
    const { selection, cells } = this;
    const column = Number(cell.dataset.column);
    const row = cell.closest("#matrix > tbody > tr");
    const steppable = (i) => {
      const result = cells.cases[i].results[column];
      return result && (!row.matches(".theme, .group, .symptom") || selection.matches(result));
    };
    return (row.siblings ?? [Number(cell.dataset.case)]).filter((i) => (selection.shown[i] || row.matches(".member, .grid")) && steppable(i));
  }

  /** Moves the focus into the table, as the tab key does. */
  enter() {
    this.#current()?.focus();
  }

  /** Builds every pending row, for printing. */
  finish() {
    this.#buildRows(Infinity);
  }

  // ── Rows ────────────────────────────────────────────────────────────────────────────────────────

  #buildRows(portion) {
    const end = performance.now() + portion;
    while (this.#rows) {
      if (this.#rows.next().done) this.#rows = null;
      if (performance.now() > end) break;
    }
    this.table.setAttribute("aria-busy", String(this.#rows != null));
    if (this.#rows) this.#pending = requestAnimationFrame(() => this.#buildRows(PORTION));
  }

  /** Appends one row for each step of the generator. */
  *#rowGenerator() {
    const { cells, query } = this;
    const { candidates, shown } = this.selection;
    const filtered = isFiltered(query);
    const entries = cells.byTheme.map((groups) =>
      groups.filter((group) => cells.members[group].some((i) => shown[i])),
    );
    let themes = entries.map((groups, theme) => ({ theme, groups })).filter(({ groups }) => groups.length);
    if (query.sort) {
      const worst = (items, casesOf) => {
        const order = new Map(items.map((item) => [item, cells.sortKey(casesOf(item), this.selection.columns)]));
        return [...items].sort((one, other) => compareKeys(order.get(one), order.get(other)));
      };
      const casesOf = (group) => cells.members[group].filter((i) => shown[i]);
      themes = worst(themes, ({ groups }) => groups.flatMap(casesOf));
      for (const one of themes) one.groups = worst(one.groups, casesOf);
    }
    const rows = themes.reduce((sum, { groups }) => sum + groups.length, 0);
    const expand = rows <= EXPANDED_ROWS && (filtered || cells.groups.length <= EXPANDED_ROWS);
    for (const { theme, groups } of themes) {
      const { name } = cells.themes[theme];
      const body = make("tbody");
      this.table.append(body);
      const open = this.#isOpen(name, expand || themes.length === 1);
      const members = groups.flatMap((group) => cells.members[group].filter((i) => candidates[i]));
      body.append(this.#themeRow(theme, open, groups, members));
      yield;
      if (!open) continue;
      const siblings = members.filter((i) => shown[i]);
      for (const group of groups) yield* this.#entry(body, group, filtered && this.selection.cases <= EXPANDED_CASES, siblings);
    }
  }

  *#entry(body, group, expand, siblings) {
    const { cells } = this;
    const { candidates, shown } = this.selection;
    const all = cells.members[group];
    const members = all.filter((i) => candidates[i]);
    if (all.length === 1) {
      body.append(this.#caseRow(all[0], "single", null, siblings));
      yield;
      return;
    }
    const open = this.#isOpen(cells.groups[group].id, expand);
    body.append(this.#groupRow(group, open, members));
    yield;
    if (!open) return;
    const grid = this.#gridRow(group, members);
    if (grid) {
      body.append(grid);
      yield;
    }
    const matching = members.filter((i) => shown[i]);
    const widths = axisWidths(matching.map((i) => cells.cases[i]));
    for (const { symptom, alike } of this.#bySymptom(matching)) {
      const id = `${cells.groups[group].id}: ${symptom}`;
      const unfolded = !symptom || this.#isOpen(id, alike.some((i) => this.#isAnchor(cells.cases[i].id)));
      if (symptom) {
        body.append(this.#symptomRow(id, symptom, unfolded, alike));
        yield;
      }
      if (!unfolded) continue;
      for (const i of alike) {
        body.append(this.#caseRow(i, "member", widths, matching));
        yield;
      }
    }
    if (matching.length < all.length) {
      const rest = all.filter((i) => !matching.includes(i));
      const control = button(`Show the other ${plural(rest.length, "case")} of this row`, () => {});
      control.dataset.all = group;
      control.tabIndex = -1;
      const note = make("tr.rest", make("td", control));
      note.cells[0].colSpan = this.selection.columns.length + 1;
      body.append(note);
      yield;
    }
  }

  /** Cases in their order, but those with one symptom together if they are many and have no result. */
  #bySymptom(matching) {
    const { cells, selection } = this;
    const symptomOf = (i) => {
      const results = selection.columns.map((column) => cells.cases[i].results[column]).filter(Boolean);
      const dead = results.filter((result) => result.look.part === "none");
      return [...new Set(dead.map((result) => [result.look.word, result.symptom].filter(Boolean).join(", ")))].join("; ");
    };
    const groups = new Map();
    for (const i of matching) {
      const symptom = symptomOf(i);
      if (!groups.has(symptom)) groups.set(symptom, []);
      groups.get(symptom).push(i);
    }
    const isRow = (symptom) => symptom && groups.get(symptom).length >= ALIKE;
    const rest = matching.filter((i) => !isRow(symptomOf(i)));
    return [
      ...[...groups].filter(([symptom]) => isRow(symptom)).map(([symptom, alike]) => ({ symptom, alike })),
      { symptom: "", alike: rest },
    ];
  }

  /** A row for many cases with one symptom. */
  #symptomRow(id, symptom, open, alike) {
    const head = make("th", make("div.name", this.#fold(`${plural(alike.length, "case")}: ${symptom}`, open)));
    return this.#row("symptom", id, head, "row", this.#tallies(alike), alike);
  }

  /** Whether the address leads to a case, or to one of its cells. */
  #isAnchor(id) {
    const { anchor } = this.query;
    return anchor === id || anchor.startsWith(`${id}@`);
  }

  /** Shows the cases of a row that the filter leaves out, for comparison with those that match. */
  #showAll(control) {
    const row = control.closest("tr");
    const group = Number(control.dataset.all);
    const all = this.cells.members[group];
    const widths = axisWidths(all.map((i) => this.cells.cases[i]));
    const rest = all.filter((i) => !this.selection.shown[i]);
    const rows = rest.map((i) => this.#caseRow(i, "member", widths, all));
    for (const one of rows) one.classList.add("beside-filter");
    row.replaceWith(...rows);
    $("button", rows[0])?.focus();
  }

  #isOpen(id, otherwise) {
    return this.query.open.has(id) || (otherwise && !this.query.shut.has(id));
  }

  #head() {
    const { targets, series, seriesOf } = this.cells;
    const { columns, folded } = this.selection;
    const heads = columns.map((column, place) => {
      const { label, device, unavailable } = targets[column];
      const one = series[seriesOf[column]];
      const isFolded = folded.has(column);
      const first = seriesOf[column] !== seriesOf[columns[place - 1]];
      const unfolded = one && first && this.query.releases.has(one.label) && one.columns.every((other) => columns.includes(other));
      const head = make(
        "th",
        make("bdi.target", breakable(isFolded ? one.label : label)),
        isFolded && make("small", `${one.versions[one.columns.indexOf(column)]}, the newest`),
        unavailable && make("small", "not available"),
        (isFolded || unfolded) && this.#releasesButton(one, !isFolded),
      );
      head.title = device;
      return head;
    });
    const line = make("tr", make("th", "Call"), heads);
    for (const head of line.cells) head.scope = "col";
    return make("thead", line);
  }

  /** The button in a column's head that shows or hides the releases of its series. */
  #releasesButton({ label, versions }, open) {
    const number = new Set(versions).size;
    const control = make("button.releases", open ? "fold" : plural(number, "release"));
    control.type = "button";
    control.dataset.series = label;
    control.setAttribute("aria-expanded", String(open));
    const words = open ? `fold the releases of ${label} into the newest` : `Show a column for each of the ${number} releases of ${label}`;
    control.setAttribute("aria-label", words);
    control.title = words;
    return control;
  }

  /** The button that shows or hides the releases of a series, if the table has it. */
  releasesButton(label) {
    return $$("thead .releases", this.table).find(({ dataset }) => dataset.series === label);
  }

  #row(kind, id, head, scope, tds, siblings) {
    head.scope = scope;
    const row = make(`tr.${kind}`, head, tds);
    row.id = id;
    row.siblings = siblings;
    return row;
  }

  #themeRow(theme, open, groups, members) {
    const { cells } = this;
    const { name, question } = cells.themes[theme];
    const all = cells.byTheme[theme].flatMap((group) => cells.members[group]);
    const heading = make("h2", this.#fold(question, open));
    const note = make("small", make("span.id", name), ` ${plural(groups.length, "row")}, ${this.#count(all)}`);
    return this.#row("theme", name, make("th", heading, note), "rowgroup", this.#tallies(members, true), members);
  }

  /** How many cases of a row the query selects. */
  #count(all) {
    const selected = all.filter((i) => this.selection.shown[i]).length;
    return selected < all.length ? `${selected} of ${plural(all.length, "case")}` : plural(all.length, "case");
  }

  #groupRow(group, open, members) {
    const { id, name, title, why } = this.cells.groups[group];
    const head = make(
      "th",
      make("div.name", this.#fold(title, open), make("small", make("span.id", name), ` ${this.#count(this.cells.members[group])}`)),
      why && make("p", prose(why)),
    );
    return this.#row("group", id, head, "row", this.#tallies(members), members);
  }

  #fold(text, open) {
    const control = make("button.fold", prose(text));
    control.type = "button";
    control.setAttribute("aria-expanded", String(open));
    control.tabIndex = -1;
    return control;
  }

  /** The worst verdict on each target and its number; with `score`, the specified ones that are right. */
  #tallies(members, score = false) {
    return this.selection.columns.map((column) => {
      const tally = this.cells.tally(members, column);
      if (!tally) return make("td.none", "no result");
      const { first, total, tried, asked, right, verdicts, colours, marks, flags, endings, dtypes } = tally;
      const worst = (score && tally.worstAsked) || tally.worst; // the one that the numbers beside it are about
      const number = verdicts[worst.verdict];
      const presents = colours.presents ?? 0;
      const mark = marks.unexpected ? "unexpected" : "known";
      const series = this.selection.folded.get(column);
      const past = series == null ? null : this.cells.historyTally(members, series);
      const notes = [
        !score && dtypes,
        endings.length < 3 && endings.join(", "),
        score && asked
          ? `${right} of ${asked} right`
          : number === total
            ? `all ${plural(total, "case")}`
            : `${number} of ${tried} ${tried < total ? "tried" : "cases"}`,
        presents > 0 && `${presents === number ? "" : `${presents} `}only in presents`,
        ...Object.entries(flags).map(([flag, count]) => (flag === "hazard" ? plural(count, flag) : `${count} ${flag}`)),
        tried > 0 && tried < total && `${total - tried} not tried`,
        past?.since && `since ${past.since}`,
        past?.regressed > 0 && make("span.regressed", `${past.regressed} regressed`),
        past?.mended > 0 && `${past.mended} broken for a time`,
        marks[mark] > 0 && make("b", `${marks[mark]} ${mark}`),
      ].flat().filter(Boolean);
      const control = make(
        `button.v.tally.${worst.colour}.${marks[mark] ? mark : ""}`,
        icon(worst.drawing),
        make("span", worst.word),
        make("small", notes.flatMap((note, i) => [i > 0 && " ", make("span", note, i < notes.length - 1 && make("span.dot", "\u00a0·"))])),
      );
      const parts = Object.entries(this.cells.verdicts).filter(([name]) => verdicts[name]);
      control.title = [...parts.map(([name, word]) => `${verdicts[name]} ${word}`), presents && `${presents} only in presents`].filter(Boolean).join(", ");
      return make("td", this.#cell(control, first, column), number < total && this.#bar(colours, total));
    });
  }

  #cell(control, number, column) {
    control.type = "button";
    control.tabIndex = -1;
    control.dataset.case = number;
    control.dataset.column = column;
    return control;
  }

  #bar(counts, total) {
    let start = 0;
    const parts = this.cells.colours.filter((name) => counts[name]).map((name) => {
      const part = draw("rect", { class: name, x: start, width: counts[name], height: 1 });
      start += counts[name];
      return part;
    });
    const box = { class: "bar", viewBox: `0 0 ${total} 1`, preserveAspectRatio: "none", "aria-hidden": "true" };
    return draw("svg", box, ...parts);
  }

  #caseRow(i, kind, widths = null, siblings = null) {
    const { cells } = this;
    const one = cells.cases[i];
    const group = cells.groups[one.group];
    const anchor = make("a", kind === "single" ? prose(group.title) : this.#axes(one, widths) ?? make("bdi", one.id));
    anchor.href = formatAddress({ ...emptyQuery(), anchor: one.id });
    anchor.tabIndex = -1;
    const head =
      kind === "single"
        ? make(
            "th",
            make("div.name", anchor, make("small", make("span.id", group.name)), this.#axes(one, null)),
            group.why && make("p", prose(group.why)),
          )
        : make("th", anchor);
    const tds = this.selection.columns.map((column) => {
      const result = one.results[column];
      if (!result) return make("td.none", "no result");
      const { word, colour, drawing, mark, note, ended_by: ending, flags } = result.look;
      const control = make(
        `button.v.${colour}.${mark}`,
        icon(drawing),
        make("span", word),
        (note || ending) && make("i", note || ending),
        flags.map((flag) => make("i", flag)),
        mark && make("b", mark),
        this.#past(i, column),
      );
      return make("td", this.#cell(control, i, column));
    });
    return this.#row(kind, one.id, head, "row", tds, siblings);
  }

  /** Since when a cell's verdict holds, in a column that stands for all releases. */
  #past(i, column) {
    const series = this.selection.folded.get(column);
    if (series == null) return null;
    const { text, filters } = this.cells.historyOf(i, series);
    return make(filters.includes("regressed") ? "small.past.regressed" : "small.past", text);
  }

  #axes(one, widths) {
    const pairs = Object.entries(one.axes ?? {});
    if (!pairs.length) return null;
    return make(
      "span.axes",
      pairs.map(([axis, label]) => {
        const part = make("span", make("i", axis), " ", make("bdi", label));
        if (widths) part.style.minWidth = `${widths[axis]}ch`;
        return part;
      }),
    );
  }

  /** A grid of the axes for each target: one axis across, the others down; null where it would be a list. */
  #gridRow(group, members) {
    const { cells } = this;
    const ones = members.map((i) => ({ i, axes: cells.cases[i].axes ?? {} }));
    const names = [...new Set(ones.flatMap(({ axes }) => Object.keys(axes)))];
    const labels = (name) => [...new Set(ones.map(({ axes }) => axes[name] ?? ""))];
    const varied = names.filter((name) => labels(name).length > 1);
    if (varied.length < 2 || ones.length < 4) return null;
    const across = varied.reduce((best, name) => {
      const fits = labels(name).join("").length <= 40;
      return fits && labels(name).length >= labels(best).length ? name : best;
    });
    const down = varied.filter((name) => name !== across);
    const key = (axes) => down.map((name) => axes[name] ?? "").join(", ");
    const lines = [...new Set(ones.map(({ axes }) => key(axes)))];
    const places = labels(across);
    const at = new Map(ones.map(({ i, axes }) => [`${key(axes)}\n${axes[across] ?? ""}`, i]));
    if (at.size < ones.length) return null; // two cases would share a cell
    const tables = this.selection.columns.map((column) => {
      const heads = [make("th", down.join(", ")), ...places.map((label) => make("th", make("bdi", label)))];
      const table = make(
        "table",
        make("caption", make("bdi.target", cells.targets[column].label), ` by ${across}`),
        make("thead", make("tr", heads)),
        make(
          "tbody",
          lines.map((line) =>
            make(
              "tr",
              make("th", make("bdi", line)),
              places.map((label) => {
                const i = at.get(`${line}\n${label}`);
                const result = i == null ? null : cells.cases[i].results[column];
                if (!result) return make("td");
                const { word, colour, drawing, mark, note } = result.look;
                const control = make(`button.v.${colour}.${mark}`, icon(drawing));
                const words = `${word}${note && ` (${note})`}${mark && `, ${mark}`}: ${line}, ${label}`;
                control.setAttribute("aria-label", words);
                control.title = words;
                return make("td", this.#cell(control, i, column));
              }),
            ),
          ),
        ),
      );
      for (const head of table.tHead.rows[0].cells) head.scope = "col";
      for (const row of table.tBodies[0].rows) row.cells[0].scope = "row";
      return table;
    });
    const box = make("td", make("div.grids", tables));
    box.colSpan = this.selection.columns.length + 1;
    const row = make("tr.grid", box);
    row.siblings = members;
    return row;
  }

  // ── Keyboard ────────────────────────────────────────────────────────────────────────────────────

  /** Makes an element the one that the tab key reaches; the arrow keys move on from there. */
  #setTabStop(element) {
    for (const other of $$("[tabindex='0']", this.table)) other.tabIndex = -1;
    element.tabIndex = 0;
    if (element.closest("#matrix tr[id]")) this.current = this.#place(element);
  }

  #place(element) {
    const row = element.closest("#matrix tr[id]");
    return `${element.closest("td, th")?.cellIndex ?? 0} ${row?.id ?? ""}`;
  }

  #current(place = this.current) {
    const [column, ...id] = place.split(" ");
    const there = stops(this.#byId(id.join(" ")))[Number(column)];
    return there ?? $(".v, .fold", this.table);
  }

  #move(event) {
    const at = event.target.closest("td, th");
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const edge = { Home: 0, End: -1 }[event.key];
    if (!at || event.ctrlKey || event.altKey || event.metaKey || (!step && edge == null)) return;
    event.preventDefault();
    const row = at.parentElement;
    let next;
    if (edge != null || step[1]) {
      const line = stops(row).filter(Boolean);
      const here = line.findIndex((one) => at.contains(one));
      next = line.at(edge ?? Math.max(0, Math.min(line.length - 1, here + step[1])));
    } else {
      const rows = $$("tr", this.table).filter((one) => stops(one).some(Boolean));
      next = nearestStop(stops(rows[rows.indexOf(row) + step[0]]), at.cellIndex);
    }
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }
}

/** The element of each cell of a row that can have the focus. */
function stops(row) {
  if (!row || row.matches("thead tr")) return [];
  return [...row.cells].map((cell) => (cell.querySelector("table") ? null : $(".v, .fold, a, button", cell)));
}

/** The stop of a column, or the nearest one. */
function nearestStop(line, column) {
  const found = line.map((stop, i) => [stop, Math.abs(i - column)]).filter(([stop]) => stop);
  return found.sort((one, other) => one[1] - other[1])[0]?.[0];
}

/** A target's name, with a possible line break before each of its parts. */
function breakable(label) {
  return label.split(/(?=[@+])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}

/** The width of each axis in characters, so that the axes of a row's cases line up. */
function axisWidths(cases) {
  const widths = Object.create(null);
  for (const { axes } of cases) {
    for (const [axis, label] of Object.entries(axes ?? {})) {
      widths[axis] = Math.max(widths[axis] ?? 0, axis.length + 1 + Math.min(label.length, 30));
    }
  }
  return widths;
}
