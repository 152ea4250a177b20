// The details of one cell: the call, its contract, the result, and how to reproduce it.
"use strict";

const OUTCOMES = {
  ran: "It ran.",
  rejected: "It was refused",
  crashed: "The process died.",
  timed_out: "It did not answer in time.",
  unavailable: "It could not be tried.",
};
const DEMANDS = {
  computes: "must compute the correct values",
  rejects: "must be refused, with an error that names the cause",
  either: "must compute the correct values or be refused",
};

let pendingReports;
/** Scripts and bug reports: most of the text of the page, unpacked when the first is shown. */
const allReports = () => (pendingReports ??= unpack($("#reports")));

/** The parts of the panel, from top to bottom, for the case `row` on the target `column`. */
class Details {
  constructor(cells, row, column) {
    Object.assign(this, { cells, row, column });
    this.about = cells.cases[row];
    this.look = this.about.results[column].look;
    const before = this.about.results.slice(0, column).filter((result) => result?.look.reported).length;
    this.result = { ...this.about.results[column], report: this.look.reported ? this.about.report + before : null };
    this.command = (this.result.reproduce ?? []).join(this.about.id);
    this.group = cells.groups[this.about.group];
    this.target = cells.targets[column];
    this.described = this.about.contract != null; // a file may have results of a case and no description
    this.contract = this.described ? (this.result.contract ?? this.about.contract) : { mentions: [] };
  }

  parts() {
    return [
      make("p.reason", make("bdi", this.result.reason)),
      this.look.colour === "presents" && make("p.why", "The output is right: a model that does not read the presents gets right results."),
      this.hazard(),
      this.expectation(),
      this.result.insensitive && make("p.note", make("b", "Warning"), ": ", prose(this.result.insensitive)),
      this.change(),
      this.releases(),
      this.message(),
      this.errorTable(),
      this.errorMaps(),
      this.relation(),
      this.demands(),
      this.call(),
      this.reproduction(),
      this.execution(),
      this.result.stderr != null && [make("h3", "End of stderr"), preformatted(this.result.stderr, "stderr")],
      this.caseInfo(),
    ];
  }

  /** What came out badly although the contract leaves it undefined. */
  hazard() {
    const { hazard } = this.result;
    return hazard && make("p.note", make("b", "Hazard"), ": ", prose(hazard));
  }

  /** What the expectations say of the result. */
  expectation() {
    const expected = this.result.expectation;
    const unexpected = this.look.mark === "unexpected";
    if (!expected && !unexpected) return null;
    const from = expected && make("span.gone", ` (${expected.file}, line ${expected.line})`);
    const note = unexpected
      ? expected
        ? ["Unexpected: the expectation is ", make("b", this.cells.verdicts[expected.verdict]), from, ". "]
        : ["Unexpected: no expectation covers this."]
      : ["Known defect: "];
    const page = expected && findingBox(expected.link);
    return [
      make(
        `p.note${unexpected ? ".unexpected" : ""}`,
        note,
        expected && [prose(expected.why), " ", !page && link(expected.link), !unexpected && from],
      ),
      page,
    ];
  }

  /** The difference from the baseline. */
  change() {
    const { change } = this.result;
    return change && make("p.note", make("b", change.kind), ": ", make("bdi", change.sentence));
  }

  /** The verdict in each release of the target, and since when it holds. */
  releases() {
    const { cells, about, column } = this;
    const number = cells.seriesOf[column];
    if (number == null) return null;
    const { columns, versions } = cells.series[number];
    const { text, filters } = cells.historyOf(cells.numbers.get(about.id), number);
    const items = columns.map((other, i) => {
      const result = about.results[other];
      if (!result) return make("li", make("span.v.skip", make("bdi", versions[i]), make("small", "no result")));
      const { word, colour, drawing, mark } = result.look;
      const link = make(`a.v.${colour}.${mark}`, make("bdi", versions[i]), icon(drawing), make("small", word));
      link.href = formatAddress({ ...emptyQuery(), anchor: `${about.id}@${cells.targets[other].label}` });
      link.dataset.column = other;
      if (other === column) link.setAttribute("aria-current", "true");
      return make("li", link);
    });
    return [make("h3", "Releases"), text && make(filters.includes("regressed") ? "p.regressed" : "p", text), make("ul.releases", items.reverse())];
  }

  message() {
    const { result, look } = this;
    const text = result.message;
    if (!text || result.message === result.reason) return null;
    const where = [look.stage && `at ${look.stage}`, look.code].filter(Boolean).join(", ");
    const mentions = this.contract.mentions.join(", ") || "the words that the contract asks for";
    return [
      make("h3", "Message ", make("span.said", where)),
      preformatted(text, "Message"),
      look.flags.includes("vague") && make("p.why", "Vague: it names none of ", make("bdi", mentions), "."),
    ];
  }

  errors() {
    const errors = [...(this.result.errors ?? [])];
    const size = ({ share }) => (typeof share === "string" ? Infinity : (share ?? Infinity));
    return errors.sort((one, other) => size(other) - size(one) || 0);
  }

  /** The worst elements, the worst output first. */
  errorTable() {
    const errors = this.errors();
    if (!errors.length) return null;
    const over = errors.filter((error) => error.share == null || !isWithinBudget(error.share)).length;
    const first = errors.slice(0, Math.max(over, 3));
    const rest = errors.slice(first.length);
    const loop = errors.some((error) => error.step);
    const line = (...texts) => make("div", texts);
    const quiet = (text) => make("div.gone", text);
    const heads = () => [
      headerWithTitle("worst element", "the element with the largest share of its error budget"),
      headerWithTitle("actual, expected", "the runtime's value and the oracle's"),
      headerWithTitle("error, budget", "the error of this element, and the largest allowed"),
      headerWithTitle("share", "the error divided by the budget; above 1 is wrong"),
      headerWithTitle("needed", "the smallest tolerance constant that would have passed"),
    ];
    const row = (error) => {
      const own = error.got == null ? null : Math.abs(error.got - error.want); // NaN if one is NaN
      const off = numberCell([line(number(own != null && Number.isFinite(own) ? own : error.absolute)), quiet(number(error.budget))]);
      if (error.relative != null) {
        off.title = `largest error of all elements: ${number(error.absolute)}, relative ${number(error.relative)}`;
      }
      return [
        numberCell([line(error.output, loop && ` of step ${error.step}`), error.index && quiet(`[${error.index.join(", ")}]`)]),
        numberCell([line(distinguished(error.got, error.want)), line(distinguished(error.want, error.got))]),
        off,
        numberCell(shareOf(error.share)),
        numberCell(number(error.needed)),
      ];
    };
    const sum = (field) => errors.reduce((all, error) => all + (error[field] ?? 0), 0);
    const undefinedOnes = sum("undefined");
    return [
      make("h3", "Errors"),
      table("Worst elements", heads(), first.map(row)),
      rest.length > 0 &&
        make(
          "details",
          make("summary", `${rest.length} more, all within budget`),
          table("Worst elements of outputs within budget", heads(), rest.map(row)),
        ),
      make(
        "p.why",
        `${sum("compared").toLocaleString("en")} elements compared`,
        undefinedOnes > 0 && `, ${undefinedOnes.toLocaleString("en")} not compared because the operator defines no value`,
        ".",
      ),
    ];
  }

  /** A map of the errors of each output beyond its budget. */
  errorMaps() {
    const maps = this.errors().filter(({ where }) => where.length);
    return maps.length > 0 && [make("h3", "Where the errors are"), maps.map((error) => errorMap(error))];
  }

  relation() {
    const relation = this.result.relation;
    if (!relation) return null;
    const how = relation.identical ? "identical" : isWithinBudget(relation.share) ? "within the tolerance" : "";
    return [
      make("h3", "Variant of the call"),
      make("p", "The same call ", prose(relation.what), " must agree: ", make(how ? "b" : "b.over", how || "it differs"), "."),
      make("p.why", prose(relation.sentence)),
    ];
  }

  demands() {
    if (!this.described) return null;
    const { demands, basis, source, why, mentions, readings, disputed } = this.contract;
    return [
      make("h3", "Contract"),
      make("p", `The call ${DEMANDS[demands] ?? demands}. `, prose(why)),
      list([
        ["basis", demands !== "either" && (this.cells.bases[basis] ?? basis)],
        ["source", link(source)],
        ["disputed by", disputed && link(disputed)],
        ["other readings", readings?.length > 0 && make("bdi", readings.join(", "))],
        ["refusal names", demands !== "computes" && mentions.length > 0 && make("bdi", `one of: ${mentions.join(", ")}`)],
      ]),
    ];
  }

  /** Inputs and outputs in one table, so that their columns line up; omitted ones are struck out. */
  call() {
    if (!this.described) return null;
    const about = this.about.call;
    const shape = (port) => (port.shape ? (port.shape.length ? port.shape.join(" × ") : "scalar") : "");
    const row = (port) =>
      port.state === "connected"
        ? [numberCell(port.name), numberCell(shape(port)), numberCell(port.dtype), make("bdi", port.values ?? "")]
        : [numberCell(make("s", port.name)), numberCell(make("s", shape(port))), numberCell(make("s", port.dtype ?? "")), make("td.gone", "omitted by an empty name")];
    const rows = (ports) => {
      const trailing = ports.filter((port) => port.state === "trailing");
      const end = make("td.gone", "omitted at the end: ", trailing.map((port, i) => [i ? ", " : "", make("s.id", port.name)]));
      end.colSpan = 4;
      return [...ports.filter((port) => port.state !== "trailing").map(row), ...(trailing.length ? [[end]] : [])];
    };
    const attributes = Object.entries(about.attributes);
    const [inputs, outputs] = [rows(about.inputs), rows(about.outputs)];
    return [
      make("h3", about.steps > 1 ? `Call: step 1 of ${about.steps}` : "Call"),
      table("Inputs and outputs", ["input", "shape", "dtype", "values"], inputs, ["output", "shape", "dtype", ""], outputs),
      about.graph && this.graph(about.graph),
      attributes.length > 0 &&
        make("div.attributes", attributes.map(([name, value]) => make("code", make("bdi", `${name} = ${value}`)))),
    ];
  }

  /** What the graph of a case consists of; the attributes below are those of its first attention. */
  graph({ file, nodes }) {
    const words = Object.entries(nodes).map(([name, count]) => `${name} ${count}`);
    return list([
      ["graph", make("bdi", file)],
      ["nodes", make("bdi", words.join(", "))],
    ]);
  }

  reproduction() {
    const { result } = this;
    const reported = result.report != null && make("div");
    if (reported) this.report(reported);
    return [
      make("h3", "Reproduction"),
      copyable(this.command, "command"),
      !(reported && this.target.template) &&
        this.described &&
        this.look.outcome !== "unavailable" &&
        this.command && [
          make("p.why", `Without this suite: the model, its inputs, and ${this.target.no_program ? `no program. ${this.target.no_program}` : "a script that needs only the runtime."}`),
          copyable(this.command.replace(/^gqa run ((?:'[^']*'|"[^"]*"|[^\s'"])+)/, "gqa export $1 repro"), "export"),
        ],
      reported,
    ];
  }

  /** Adds the program and the bug report to `box` when they are unpacked. */
  async report(box) {
    const { reports, templates } = await allReports();
    const { template } = this.target;
    const [head, data, issue, fence] = reports[this.result.report];
    const body = data.length ? `\n\n${templates[template]}`.replace("__DATA__", () => data.join("\n")) : "\n";
    const program = head.join("\n") + body;
    const report = issue.join("\n\n") + (fence.length ? `${program}${fence[0]}\n` : "");
    box.append(
      template ? make("details", make("summary", "Without this suite: ", make("code", "repro.py")), copyable(program, "script")) : "",
      make("details", make("summary", "Bug report"), copyable(report, "bug report")),
    );
  }

  /** Which other columns returned identical outputs, and which did not. */
  identicalOutputs() {
    const { bits } = this.result;
    if (bits == null) return null;
    const others = this.about.results.flatMap((other, i) =>
      other?.bits != null && i !== this.column ? [[other.bits === bits, this.cells.targets[i].label]] : [],
    );
    const names = (same) => others.filter(([equal]) => equal === same).map(([, label]) => label).join(", ");
    return [names(true) && `identical on ${names(true)}`, names(false) && `different on ${names(false)}`]
      .filter(Boolean)
      .join("; ");
  }

  execution() {
    const { result, look, target } = this;
    const times = ["load", "run", "total"]
      .filter((part) => result.ms?.[part] != null)
      .map((part) => `${part} ${number(result.ms[part], 3)} ms`);
    const stage = look.outcome === "rejected" && look.stage ? ` at ${look.stage}` : "";
    const outcome = OUTCOMES[look.outcome] ?? look.outcome;
    return [
      make("h3", "Execution"),
      list([
        ["outcome", look.outcome === "rejected" ? `${outcome}${stage}.` : outcome],
        ["device", target.device && make("bdi", target.device)],
        ["placed on", look.placement && make("bdi", look.placement)],
        ["kernel", look.kernels.length > 0 && make("bdi", look.kernels.join(", "))],
        ["wrong in", look.wrong.length > 0 && make("bdi", look.wrong.join(", "))],
        ["values", { true: "nevertheless correct", false: "wrong" }[look.values_right]],
        ["outputs", this.identicalOutputs()],
        ["times", times.join(", ")],
      ]),
    ];
  }

  caseInfo() {
    const { about } = this;
    if (!this.described) return null;
    return [
      make("h3", "Case"),
      list([
        ["why", prose(about.why)],
        ["variant", about.relation && make("bdi", about.relation)],
        ["file", make("code", make("bdi", about.file))],
        ["tags", make("bdi", about.tags.join(", "))],
        ["links", about.links.length > 0 && make("ul", about.links.map((text) => make("li", link(text))))],
      ]),
    ];
  }
}

/** The finding about a defect, collapsed; null if the page has none by this name. */
function findingBox(name, open = false) {
  const page = $$("template").find(({ id }) => id === `page:${name}`);
  if (!page) return null;
  const box = make("details.finding", make("summary", "Finding and workaround: ", make("bdi", name)), page.content.cloneNode(true));
  box.open = open;
  return box;
}

const isWithinBudget = (value) => value == null || (typeof value === "number" && value <= 1);

function shareOf(value) {
  if (value == null) return "";
  return make(isWithinBudget(value) ? "span" : "span.over", `${number(value, value < 10 ? 2 : 3)} ×`);
}

const numberCell = (text) => make("td.num", text);

function headerWithTitle(text, title) {
  const cell = make("th", text);
  cell.title = title;
  return cell;
}

/** A table of one or more parts, each given as its heads and its rows. */
function table(caption, ...parts) {
  const line = (cells, tag) =>
    make("tr", cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : make(tag, cell))));
  const bodies = [];
  for (let i = 0; i < parts.length; i += 2) {
    const head = line(parts[i].map((text) => text || make("td")), "th");
    for (const cell of head.querySelectorAll("th")) cell.scope = "col";
    bodies.push(make("tbody", head, parts[i + 1].map((row) => line(row, "td"))));
  }
  const box = make("div.tablebox", make("table", make("caption.unseen", caption), bodies));
  box.tabIndex = 0; // so that the keyboard can scroll it
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", caption);
  return box;
}

/** The maps of an output's errors, line by line: a label, the characters, a note. */
function errorMap({ output, step, where }) {
  const width = Math.max(0, ...where.map(([label, cells]) => (cells ? label.length : 0)));
  const lines = where.flatMap(([label, cells, note]) => {
    const parts = cells.split(/([1-9#!X]+)/).map((part, i) => (i % 2 ? make("b", part) : part));
    return [label.padEnd(width), "  ", parts, "  ", note, "\n"];
  });
  const box = preformatted(lines, `Where ${output}${step ? ` of step ${step}` : ""} is wrong`);
  box.className = "map";
  return box;
}
