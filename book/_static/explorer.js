// The explorer: choose a setting, and see what was measured in it. The data are in explorer-data.js.
(() => {
  "use strict"
  // The columns of a row of data.
  const CHOICES = ["leak", "attack", "network", "training", "data", "batch", "client", "family"]
  const [DEFENSE, DETAIL, MEASURE, PAGE, VALUE, LOW, HIGH, CHANCE, COUNT, SEVERITY] = Array.from({ length: 10 }, (_, i) => CHOICES.length + i)
  const NAMES = {
    leak: "What leaks", network: "Network", training: "Training", batch: "Batch size", family: "Defence",
    client: "Client", attack: "Attack", data: "Data",
  }
  const COLUMNS = ["family", "network", "training", "batch", "client", "data"]
  const STEP = 25
  const column = axis => CHOICES.indexOf(axis)

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag)
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "onclick" || name === "onchange") made[name] = value
      else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value)
    }
    made.append(...children.filter(child => child !== "" && child !== undefined))
    return made
  }

  function start(root, data) {
    const { lists, rows, levels, pages, measures } = data
    const state = { columns: "family", shown: STEP }
    const label = (axis, index) => axis === "batch" ? `B = ${lists.batch[index]}` : String(lists[axis][index])

    const matches = (row, except = []) => CHOICES.every(
      axis => state[axis] === undefined || except.includes(axis) || row[column(axis)] === state[axis])
    const selected = except => rows.filter(row => matches(row, except))

    const number = value => typeof value === "number"
      ? (Math.abs(value) >= 10 || value === 0 ? value.toFixed(value < 100 && value % 1 ? 1 : 0) : String(+value.toPrecision(2))) : value
    const value = row => typeof row[VALUE] === "number" ? `${number(row[VALUE])} ${measures[row[MEASURE]][1]}` : row[VALUE]
    const worse = (one, other) => other[SEVERITY] - one[SEVERITY] || rank(other[LOW]) - rank(one[LOW]) || rank(other[VALUE]) - rank(one[VALUE])
    const rank = entry => entry === "exact" ? Infinity : typeof entry === "number" ? entry : -Infinity

    function success(row) {
      const [measure, , cases] = measures[row[MEASURE]]
      const interval = row[LOW] === null ? "too few cases for an interval" : `95 %: ${number(row[LOW])} to ${number(row[HIGH])}`
      const chance = row[CHANCE] > 0 ? `; guessing: ${number(row[CHANCE])} %` : ""
      return [element("strong", {}, value(row)), ` ${measure} (${interval}; n = ${row[COUNT].toLocaleString("en")} ${cases}${chance})`]
    }

    function setting(row) {
      const client = label("client", row[column("client")])
      return [
        `${label("network", row[column("network")])}, ${label("training", row[column("training")])}`,
        label("batch", row[column("batch")]),
        data.defenses[row[DEFENSE]] === "none" ? "no defence" : data.defenses[row[DEFENSE]],
        client === "float32" ? "" : client,
        label("data", row[column("data")]),
        data.details[row[DETAIL]],
      ].filter(Boolean).join("; ")
    }

    const badge = severity => element("span", { class: `leaks leaks-${severity}` }, levels[severity])

    function select(axis) {
      const found = new Map()
      for (const row of selected([axis])) found.set(row[column(axis)], (found.get(row[column(axis)]) || 0) + 1)
      const options = lists[axis].map((name, index) => element("option", { value: index, selected: state[axis] === index },
        `${label(axis, index)} (${found.get(index) || "not run"})`))
      const any = element("option", { value: "", selected: state[axis] === undefined }, "any")
      const id = `explorer-${axis}`
      const made = element("select", { id, "data-axis": axis, onchange: event => choose({ [axis]: event.target.value === "" ? undefined : +event.target.value }) }, any, ...options)
      return element("div", { class: "explorer-choice" }, element("label", { for: id }, NAMES[axis]), made)
    }

    function summary(found) {
      if (found.length === 0) {
        const ways = CHOICES.filter(axis => state[axis] !== undefined)
          .map(axis => [axis, selected([axis]).length]).filter(([, count]) => count > 0)
          .map(([axis, count]) => element("button", { type: "button", onclick: () => choose({ [axis]: undefined }) },
            `${axis === "leak" ? "any kind of leak" : `any ${NAMES[axis].toLowerCase()}`} (${count})`))
        return [element("strong", {}, "Not run: "), "no page of the book measures this setting. ",
          ways.length ? "Outcomes if you leave one choice open: " : "Leave two or more choices open.", ...ways.flatMap(way => [way, " "])]
      }
      const counts = levels.map((level, severity) => [level, found.filter(row => row[SEVERITY] === severity).length])
      const parts = counts.reverse().filter(([, count]) => count).map(([level, count]) => `${count.toLocaleString("en")} leak ${level}`)
      const many = new Set(found.map(row => row[PAGE])).size
      return [element("strong", {}, `${found.length.toLocaleString("en")} outcome${found.length > 1 ? "s" : ""}`),
        ` from ${many} page${many > 1 ? "s" : ""}: ${parts.join(", ")}.`]
    }

    function map() {
      const axis = state.columns
      // The choices of the attack and of the columns' axis are shown as a mark, so that what is beside them stays visible.
      const others = selected(["attack", axis])
      const ofKind = rows.filter(row => state.leak === undefined || row[column("leak")] === state.leak)
      const heads = lists[axis].map((_, index) => index).filter(index => ofKind.some(row => row[column(axis)] === index))
      const keys = [...new Set(ofKind.map(row => `${row[column("leak")]}/${row[column("attack")]}`))]
        .map(key => key.split("/").map(Number))
      const cells = new Map()
      for (const row of others) {
        const key = `${row[column("leak")]}/${row[column("attack")]}/${row[column(axis)]}`
        const before = cells.get(key)
        cells.set(key, { row: !before || worse(row, before.row) < 0 ? row : before.row, count: (before ? before.count : 0) + 1 })
      }
      const head = element("tr", {}, element("th", { scope: "col" }, "attack"),
        ...heads.map(index => element("th", { scope: "col", class: state[axis] === index ? "chosen" : undefined }, label(axis, index))))
      const lines = []
      let kind
      // Attacks that were run in the chosen setting come first, the most severe of them on top.
      const most = new Map(keys.map(([leak, attack]) => [`${leak}/${attack}`, Math.max(-1, ...heads.map(index => {
        const cell = cells.get(`${leak}/${attack}/${index}`)
        return cell ? cell.row[SEVERITY] : -1
      }))]))
      keys.sort((one, other) => one[0] - other[0] || most.get(other.join("/")) - most.get(one.join("/")) || one[1] - other[1])
      for (const [leak, attack] of keys) {
        if (leak !== kind) {
          kind = leak
          lines.push(element("tr", { class: "kind" }, element("th", { scope: "rowgroup", colspan: heads.length + 1 }, lists.leak[leak])))
        }
        lines.push(element("tr", {}, element("th", { scope: "row", class: state.attack === attack ? "chosen" : undefined }, label("attack", attack)),
          ...heads.map(index => {
            const cell = cells.get(`${leak}/${attack}/${index}`)
            if (!cell) return element("td", { class: "not-run" }, "not run")
            const chosen = state.leak === leak && state.attack === attack && state[axis] === index
            const said = `${label("attack", attack)}, ${label(axis, index)}: ${levels[cell.row[SEVERITY]]}, ${value(cell.row)}; ${cell.count} outcomes`
            return element("td", { class: `leaks-${cell.row[SEVERITY]}` }, element("button", {
              type: "button", "aria-label": said, "aria-pressed": String(chosen), title: said, "data-key": `${leak}/${attack}/${index}`,
              onclick: () => choose(chosen ? { attack: undefined, [axis]: undefined } : { leak, attack, [axis]: index }),
            }, value(cell.row)))
          })))
      }
      return element("table", {}, element("caption", {}, "The most severe outcome of each attack in the chosen setting, and of equally severe ones the most certain; click a cell to see its outcomes"),
        element("thead", {}, head), element("tbody", {}, ...lines))
    }

    function list(found) {
      const lines = found.slice().sort(worse).slice(0, state.shown).map(row => {
        const [title, place] = pages[row[PAGE]]
        return element("tr", {},
          element("td", { "data-head": "leaks" }, badge(row[SEVERITY])),
          element("td", { "data-head": "attack" }, `${label("attack", row[column("attack")])} (${lists.leak[row[column("leak")]]})`),
          element("td", { "data-head": "success" }, ...success(row)),
          element("td", { "data-head": "setting" }, setting(row)),
          element("td", { "data-head": "measured on" }, element("a", { href: place }, title)))
      })
      const heads = ["leaks", "attack", "success", "setting", "measured on"].map(name => element("th", { scope: "col" }, name))
      return element("table", {}, element("caption", {}, "The outcomes, the most severe first"),
        element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines))
    }

    // The parts stay in the page, so that screen readers announce the summary when it changes.
    const choices = element("div", { class: "explorer-choices" })
    const told = element("p", { class: "explorer-summary", role: "status", "aria-live": "polite" })
    const axes = element("select", { id: "explorer-columns", onchange: event => choose({ columns: event.target.value }) })
    const heat = element("div", { class: "explorer-map", tabindex: "0", role: "region", "aria-label": "Attacks by setting" })
    const results = element("div", { class: "explorer-results" })
    const more = element("button", { type: "button", class: "explorer-more", onclick: () => { state.shown += STEP; draw() } })
    const reset = element("button", { type: "button", class: "explorer-reset", onclick: () => choose(Object.fromEntries(CHOICES.map(axis => [axis, undefined]))) }, "Clear all choices")
    root.replaceChildren(
      choices, reset, told,
      element("p", { class: "explorer-columns" }, element("label", { for: "explorer-columns" }, "Columns of the table: "), axes),
      heat, results, more)

    function draw() {
      const focus = document.activeElement
      const [axis, key] = [focus?.dataset?.axis, focus?.dataset?.key]
      const found = selected([])
      choices.replaceChildren(...Object.keys(NAMES).map(select))
      axes.replaceChildren(...COLUMNS.map(name => element("option", { value: name, selected: state.columns === name }, NAMES[name].toLowerCase())))
      told.replaceChildren(...summary(found))
      heat.replaceChildren(map())
      const column = heat.querySelector("thead th.chosen")
      if (column) heat.scrollLeft = column.offsetLeft - heat.clientWidth / 2
      results.replaceChildren(found.length ? list(found) : "")
      more.hidden = found.length <= state.shown
      more.textContent = `Show ${Math.min(STEP, found.length - state.shown)} more of ${(found.length - state.shown).toLocaleString("en")}`
      reset.hidden = CHOICES.every(axis => state[axis] === undefined)
      if (axis) root.querySelector(`[data-axis="${axis}"]`)?.focus()
      else if (key) root.querySelector(`[data-key="${key}"]`)?.focus()
    }

    function choose(changes) {
      Object.assign(state, { shown: STEP }, changes)
      const words = new URLSearchParams()
      for (const axis of CHOICES) if (state[axis] !== undefined) words.set(axis, lists[axis][state[axis]])
      if (state.columns !== COLUMNS[0]) words.set("columns", state.columns)
      history.replaceState(null, "", words.size === 0 && !String(words) ? location.pathname + location.search : `#${words}`)
      draw()
    }

    function read() {
      const words = new URLSearchParams(location.hash.slice(1))
      for (const axis of CHOICES) {
        const index = words.has(axis) ? lists[axis].findIndex(name => String(name) === words.get(axis)) : -1
        state[axis] = index < 0 ? undefined : index
      }
      state.columns = COLUMNS.includes(words.get("columns")) ? words.get("columns") : COLUMNS[0]
      state.shown = STEP
      draw()
    }

    window.addEventListener("hashchange", read)
    read()
  }

  document.addEventListener("DOMContentLoaded", () => {
    const root = document.getElementById("explorer")
    if (root && typeof GRADLEAK_OUTCOMES !== "undefined") start(root, GRADLEAK_OUTCOMES)
  })
})()
