// Which cases and results a query selects, and their totals.
"use strict";

/** The cells of the page, with indexes that every key press needs. */
class Cells {
  constructor(data) {
    Object.assign(this, data);
    for (const { axes } of this.cases) if (axes) Object.setPrototypeOf(axes, null); // an axis can have any name
    this.rank = Object.fromEntries(data.verdicts.map((verdict, i) => [verdict, i]));
    this.members = this.groups.map(() => []); // case numbers, by group
    this.cases.forEach((one, i) => this.members[one.group].push(i));
    this.byTheme = this.themes.map(() => []); // group numbers, by theme
    this.groups.forEach((group, i) => this.byTheme[group.theme].push(i));
    this.numbers = new Map(this.cases.map((one, i) => [one.id, i]));
    this.seriesOf = []; // series numbers, by column; none for a target with one release
    this.series.forEach(({ columns }, number) => columns.forEach((column) => (this.seriesOf[column] = number)));
    this.caseTexts = []; // lower-case texts of the cases, made when first searched
    this.pooledTexts = []; // the same for the pool
  }

  /** A pooled value as lower-case text. */
  #text(index) {
    const value = this.pool[index];
    return (this.pooledTexts[index] ??= (typeof value === "string" ? value : Object.values(value).join("\n")).toLowerCase());
  }

  #caseText(i) {
    const { id, group, why, tags, links } = this.cases[i];
    const { title, theme } = this.groups[group];
    const { question } = this.themes[theme];
    const texts = [why, tags, links].map((index) => (index == null ? "" : this.#text(index)));
    return (this.caseTexts[i] ??= [id, title, question, ...texts].join("\n").toLowerCase());
  }

  /** Whether a result contains a word; `found` caches the answer for each pooled text. */
  #contains(result, word, found) {
    return [result.message, result.reason, result.expectation, result.stderr].some(
      (index) => index != null && (found[index] ??= this.#text(index).includes(word)),
    );
  }

  /**
   * The columns that a query shows, and which of them stand for all releases of a series: `folded`
   * has the series by column. A series that is not unfolded is shown by its newest release that
   * was tried; of one that is, the newest comes first.
   */
  #columns(query) {
    const [columns, folded, seen] = [[], new Map(), new Set()];
    const wanted = (name) => !query.target.size || query.target.has(name);
    this.targets.forEach(({ label }, column) => {
      const number = this.seriesOf[column];
      const series = this.series[number];
      if (!series && wanted(label)) columns.push(column);
      if (!series || seen.has(number)) return;
      seen.add(number);
      const newestFirst = [...series.columns].reverse();
      if (!wanted(series.label)) columns.push(...newestFirst.filter((one) => wanted(this.targets[one].label)));
      else if (query.releases.has(series.label)) columns.push(...newestFirst);
      else {
        columns.push(series.newest);
        folded.set(series.newest, number);
      }
    });
    return { columns, folded };
  }

  /** The history of a case in a series. */
  historyOf(i, number) {
    return this.pool[this.cases[i].history[number]];
  }

  /** Whether a case has one of the values of the filter `history` in one of the series. */
  #hasHistory(i, values, numbers) {
    return numbers.some((number) => {
      const { broken, fixed, regressed } = this.historyOf(i, number);
      const { label } = this.series[number];
      return (
        (values.has("regressed") && regressed) ||
        (values.has("mended") && broken.length > 0 && !regressed) ||
        broken.some((version) => values.has(`broken:${label} ${version}`)) ||
        fixed.some((version) => values.has(`fixed:${label} ${version}`))
      );
    });
  }

  /**
   * What a query selects: `columns` to show and `folded` ones; `candidates[i]`, whether a case has the words, tag and
   * dtype; `shown[i]`, whether one of its results also matches; the numbers of both; and
   * `matches(result)`, whether a result has one of the verdicts and the marks.
   */
  select(query) {
    const { columns, folded } = this.#columns(query);
    const every = columns.flatMap((column) => (folded.has(column) ? this.series[folded.get(column)].columns : [column]));
    const series = [...new Set(every.map((column) => this.seriesOf[column]))].filter((number) => number != null);
    const words = searchTerms(query.q).map((word) => ({ word, found: [] }));
    const candidates = new Uint8Array(this.cases.length);
    const shown = new Uint8Array(this.cases.length);
    const byResult = ["verdict", "score", "wrong", "symptom"].some((name) => query[name].size) || query.unexpected || query.silent || query.changed;
    const matches = (result) =>
      (!query.verdict.size || query.verdict.has(result.verdict)) &&
      (!query.score.size || query.score.has(this.partOf(result))) &&
      (!query.wrong.size || [...query.wrong].some((value) => isWrongIn(result, value))) &&
      (!query.symptom.size || query.symptom.has(this.pool[result.symptom])) &&
      (!query.unexpected || result.unexpected) &&
      (!query.silent || ranksAs(result) === "wrong") &&
      (!query.changed || result.change);
    let cases = 0;
    let results = 0;
    this.cases.forEach((one, i) => {
      const present = columns.map((column) => one.results[column]).filter(Boolean);
      if (query.dtype.size && !query.dtype.has(one.dtype)) return;
      if (query.theme.size && !query.theme.has(this.themes[this.groups[one.group].theme].name)) return;
      if (query.basis.size && !query.basis.has(this.basisOf(i))) return;
      if (query.tag.size && !(this.pool[one.tags] ?? []).some((tag) => query.tag.has(tag))) return;
      const lacking = words.filter(({ word }) => !this.#caseText(i).includes(word));
      if (!lacking.every(({ word, found }) => present.some((one) => this.#contains(one, word, found)))) return;
      candidates[i] = 1;
      if (query.history.size && !this.#hasHistory(i, query.history, series)) return;
      if (query.differs && !verdictsDiffer(every.map((column) => one.results[column]).filter(Boolean))) return;
      const matching = present.filter(matches);
      if (byResult && !matching.length) return;
      shown[i] = 1;
      cases += 1;
      results += matching.length;
    });
    return { columns, folded, candidates, shown, cases, results, matches };
  }

  /** Totals of these cases on a target, the worst verdict, and the case to open first. */
  tally(cases, column) {
    const [counts, ranks] = [{}, {}];
    const endings = new Set(); // of the processes, such as SIGSEGV
    const worstOf = new Map(); // result by dtype
    let [total, asked, right, presents, unexpected, known, vague, hazards, requested, first, worst] = [0, 0, 0, 0, 0, 0, 0, 0, 0, null, null];
    for (const i of cases) {
      const result = this.cases[i].results[column];
      if (!result) continue;
      total += 1;
      counts[result.verdict] = (counts[result.verdict] ?? 0) + 1;
      ranks[colourOf(result)] = (ranks[colourOf(result)] ?? 0) + 1;
      if (onlyPresents(result)) presents += 1;
      if (worst == null || this.#severity(result) < this.#severity(worst)) worst = result;
      const there = worstOf.get(this.cases[i].dtype);
      if (ranksAs(result) !== "skip" && (!there || this.#severity(result) < this.#severity(there))) worstOf.set(this.cases[i].dtype, result);
      const part = this.basisOf(i) !== "requested" && this.partOf(result);
      if (part) asked += 1;
      if (part === "right") right += 1;
      if (result.ended_by) endings.add(result.ended_by);
      if (result.unexpected) unexpected += 1;
      else if (result.expectation != null) known += 1;
      if (result.vague) vague += 1;
      if (result.hazard) hazards += 1;
      if (isRequestedOnly(result)) requested += 1;
      if (first == null || this.worse(result, this.cases[first].results[column])) first = i;
    }
    if (!total) return null;
    const { verdict } = worst;
    const number = counts[verdict];
    const figures = { number, total, asked, right, presents, counts, ranks, unexpected, known, vague, hazards, requested, first };
    return { verdict, colour: colourOf(worst), drawing: drawingOf(worst), endings: [...endings], dtypes: dtypesApart(worstOf), ...figures };
  }

  /**
   * Of these cases, how many were right in an earlier release of a series and are not now, how many
   * were broken for a time, and the version since which all of them are right, if they are.
   */
  historyTally(cases, number) {
    const { versions } = this.series[number];
    let [regressed, mended, since, earliest] = [0, 0, -1, true];
    let right = cases.length > 0;
    for (const i of cases) {
      const history = this.historyOf(i, number);
      if (history.regressed) regressed += 1;
      else if (history.broken.length) mended += 1;
      if (history.since == null) right = false;
      const at = versions.indexOf(history.since);
      if (at > since) [since, earliest] = [at, history.earliest];
      else if (at === since && !history.earliest) earliest = false;
    }
    return { regressed, mended, since: right ? `${earliest ? "≤" : ""}${shortVersion(versions[since])}` : "" };
  }

  /** What the contract of a case rests on; a case without a description counts as specified. */
  basisOf(i) {
    return this.pool[this.cases[i].contract]?.basis ?? "specified";
  }

  /** The part of the score that a result counts for; undefined if it was not tried. */
  partOf(result) {
    if (result.other_kernel) return undefined;
    if (ranksAs(result) !== "wrong") return this.parts[result.verdict];
    return onlyPresents(result) ? "presents" : "silent";
  }

  /** Whether one result comes before the other: unexpected ones first, then the worst. */
  worse(one, other) {
    if (Boolean(one.unexpected) !== Boolean(other.unexpected)) return Boolean(one.unexpected);
    return this.#severity(one) < this.#severity(other);
  }

  /** A result's place in the order of severity: 0 is worst. */
  #severity(result) {
    return 2 * this.rank[ranksAs(result)] + onlyPresents(result);
  }

  /** A sort key by severity on any of the columns: smaller is worse. Skipped results do not count. */
  sortKey(cases, columns) {
    let [unexpected, worst, number] = [0, Infinity, 0];
    for (const i of cases) {
      for (const column of columns) {
        const result = this.cases[i].results[column];
        if (!result || ranksAs(result) === "skip") continue;
        if (result.unexpected) unexpected += 1;
        const rank = this.#severity(result);
        if (rank < worst) [worst, number] = [rank, 1];
        else if (rank === worst) number += 1;
      }
    }
    return [-unexpected, worst, -number];
  }
}

/** The verdict that a result is ordered by. */
const ranksAs = (result) => result.ranks_as ?? result.verdict;

/** Whether the presents are wrong, and nothing else: the output is right. */
const onlyPresents = (result) => result.wrong_outputs?.join() === "presents";

/** Whether a result is wrong in an output, or, where `value` begins with `only:`, in exactly those. */
function isWrongIn({ wrong_outputs: wrong = [] }, value) {
  return value.startsWith("only:") ? `only:${wrong.join()}` === value : wrong.includes(value);
}

/** Whose colours a result has, and which drawing: those of a verdict, or `presents`. */
const colourOf = (result) => (onlyPresents(result) ? "presents" : ranksAs(result));
const drawingOf = (result) => (onlyPresents(result) && result.verdict === ranksAs(result) ? "presents" : result.verdict);

/** The search terms of a text: words in any order, and quoted phrases. */
function searchTerms(text) {
  return [...text.toLowerCase().matchAll(/"([^"]+)"?|\S+/g)].map(([word, quoted]) => quoted ?? word);
}

/** Whether a call was rejected whose contract is not specified: no defect, and not unexpected. */
function isRequestedOnly(result) {
  return result.verdict === "unsupported" && !result.unexpected && result.expectation == null;
}

/** Whether the verdicts of the targets that were tried differ, or whether only presents are wrong. */
function verdictsDiffer(results) {
  return new Set(results.filter((one) => ranksAs(one) !== "skip").map((one) => `${one.verdict} ${onlyPresents(one)}`)).size > 1;
}

/** The dtypes with each verdict, `float32 float16 pass`; none if all have the same. */
function dtypesApart(worstOf) {
  const byVerdict = new Map();
  for (const [dtype, { verdict }] of worstOf) byVerdict.set(verdict, [...(byVerdict.get(verdict) ?? []), dtype]);
  return byVerdict.size > 1 ? [...byVerdict].map(([verdict, dtypes]) => `${dtypes.join(" ")} ${verdict}`) : [];
}

/** Compares two sort keys, lists of numbers, for `Array.sort`. */
function compareKeys(one, other) {
  const at = one.findIndex((value, i) => value !== other[i]);
  return at < 0 ? 0 : one[at] - other[at];
}

/** A version without a last part that is 0. */
const shortVersion = (version) => version.replace(/(\..*)\.0$/, "$1");
