// The scoreboard: one table of all claims that is filtered, sorted and opened. Without this script the folded tables
// stand as they are. The state lies in the address: "#claim-<id>" opens a claim, "#paper=wang2024&verdict=fails" filters.
(() => {
  const root = document.getElementById("claims")
  if (!root) return
  const SHOWN = 25 // rows before "Show all"
  const CHOICES = { paper: "Paper", place: "Place", page: "Page", verdict: "Verdict", whose: "Whose", cause: "Cause", changed: "What changed" }
  const ORDERS = { "": "as on the pages", verdict: "verdict", place: "place", claim: "claim", published: "published", measured: "measured", page: "page" }
  const natural = new Intl.Collator("en", { numeric: true })

  function make(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties)
    made.append(...children)
    return made
  }

  // Every claim: its row, the values that it is filtered by, and the text that is searched.
  const claims = [...root.querySelectorAll("tbody tr")].map((row, order) => {
    const [verdict, place, claim, published, measured, , page] = [...row.cells].map(cell => cell.textContent)
    const [paper, ...rest] = place.split(", ")
    return {
      row, order, id: row.id.slice("claim-".length), page,
      values: {
        paper: [paper], place: [rest.join(", ")], page: [page], verdict: [verdict.replace(/ \(.*/, "")],
        whose: [row.dataset.whose], cause: row.dataset.cause ? [row.dataset.cause] : [],
        changed: row.dataset.changed?.split("|") ?? [],
      },
      keys: { verdict, place, claim, published, measured, page },
      text: `${row.textContent} ${row.id}`.toLowerCase(),
    }
  })
  const byId = new Map(claims.map(claim => [claim.id, claim]))
  const state = { q: "", sort: "", down: "", claim: "" }
  for (const name in CHOICES) state[name] = ""
  let all = false // whether all rows are shown, not only the first

  // The table and the controls.
  const table = make("table", { className: "gradleak-table all-claims" })
  const body = make("tbody")
  const head = root.querySelector("thead").cloneNode(true)
  table.append(head, body)
  body.append(...claims.map(claim => claim.row))
  const columns = ["verdict", "place", "claim", "published", "measured", "", "page"]
  const heads = [...head.rows[0].cells].map((cell, index) => {
    const name = columns[index]
    if (!name) return null
    const button = make("button", { type: "button", textContent: cell.textContent })
    cell.replaceChildren(button)
    button.addEventListener("click", () => change({ sort: name, down: state.sort === name && !state.down ? "1" : "" }))
    return cell
  })

  const inputs = {}
  const controls = make("form", { className: "claims-controls" })
  function control(name, label, input) {
    input.id = `claims-${name}`
    inputs[name] = input
    controls.append(make("div", {}, make("label", { htmlFor: input.id }, label), input))
    input.addEventListener(name === "q" ? "input" : "change", () => change({ [name]: input.value }))
  }
  control("q", "Search", make("input", { type: "search", placeholder: "words, or a claim's id" }))
  for (const [name, label] of Object.entries(CHOICES)) control(name, label, make("select"))
  control("sort", "Sort by", make("select"))
  inputs.sort.append(...Object.entries(ORDERS).map(([value, text]) => make("option", { value, textContent: text })))
  const reset = make("button", { type: "reset", textContent: "Clear all" })
  controls.append(reset)
  controls.addEventListener("submit", event => event.preventDefault())
  controls.addEventListener("reset", event => {
    event.preventDefault()
    change(Object.fromEntries(Object.keys(state).map(name => [name, ""])))
  })
  const count = make("p", { className: "claims-count" })
  count.setAttribute("role", "status")
  const more = make("button", { type: "button", className: "claims-more" })
  more.addEventListener("click", () => { all = true; show() })
  root.replaceChildren(controls, count, make("div", { className: "pst-scrollable-table-container" }, table), more)

  // Each claim's statement is a link to its anchor, which opens and closes its details.
  for (const claim of claims) {
    claim.button = claim.row.querySelector("a[href^='#claim-']")
    claim.button.setAttribute("role", "button")
    claim.button.setAttribute("aria-expanded", "false")
    claim.button.addEventListener("click", event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return
      event.preventDefault()
      toggle(claim)
    })
    claim.button.addEventListener("keydown", event => {
      if (event.key === " ") { event.preventDefault(); toggle(claim) }
    })
  }
  function toggle(claim) {
    if (state.claim === claim.id) close()
    else { state.claim = claim.id; write(true); open(true) }
  }

  // The state in the address.
  function read() {
    const hash = location.hash.slice(1)
    const anchor = hash.startsWith("claim-")
    const given = new URLSearchParams(anchor ? "" : hash)
    for (const name in state) state[name] = given.get(name) ?? ""
    if (anchor) state.claim = decodeURIComponent(hash.slice("claim-".length))
  }
  function write(push) {
    const set = Object.entries(state).filter(([, value]) => value)
    const alone = set.length === 1 && state.claim
    const hash = alone ? `claim-${encodeURIComponent(state.claim)}` : new URLSearchParams(set).toString()
    const address = hash ? `#${hash}` : location.pathname + location.search
    if (hash !== location.hash.slice(1)) history[push ? "pushState" : "replaceState"](null, "", address)
  }
  function change(changes) {
    Object.assign(state, changes)
    all = false
    if (!("claim" in changes)) state.claim = ""
    write(false)
    show()
    open(false)
  }

  // Filter, sort and count.
  const chosen = (claim, name) => !state[name] || claim.values[name].includes(state[name]) || (state[name] === "any" && claim.values[name].length > 0)
  function matches(claim, but) {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean)
    return words.every(word => claim.text.includes(word)) && Object.keys(CHOICES).every(name => name === but || chosen(claim, name))
  }
  function compared(one, other) {
    const [left, right] = [one.keys[state.sort], other.keys[state.sort]]
    if (state.sort === "published" || state.sort === "measured") {
      const [a, b] = [left, right].map(text => parseFloat(text.replace("−", "-")))
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b) || natural.compare(left, right)
      return state.down ? b - a : a - b
    }
    return state.down ? natural.compare(right, left) : natural.compare(left, right)
  }
  function show() {
    const found = claims.filter(claim => matches(claim))
    const opened = byId.get(state.claim)
    if (state.sort) found.sort((one, other) => compared(one, other) || one.order - other.order)
    // A claim that was asked for is shown whatever the filter says, and first if it would lie behind "Show all".
    if (opened && (!found.includes(opened) || (!all && found.indexOf(opened) >= SHOWN))) {
      found.splice(0, 0, ...(found.includes(opened) ? found.splice(found.indexOf(opened), 1) : [opened]))
    }
    closePanel()
    for (const claim of claims) claim.row.hidden = true
    found.forEach((claim, index) => {
      claim.row.hidden = false
      claim.row.classList.toggle("later", !all && index >= SHOWN)
    })
    body.append(...found.map(claim => claim.row))
    const number = claims.filter(claim => matches(claim)).length
    const format = value => value.toLocaleString("en")
    count.textContent = `${format(number)} of ${format(claims.length)} claims`
    more.hidden = all || found.length <= SHOWN
    more.textContent = `Show all ${format(found.length)}`
    for (const [name, input] of Object.entries(inputs)) if (!(name in CHOICES) && input.value !== state[name]) input.value = state[name]
    for (const name in CHOICES) fill(name)
    heads.forEach((cell, index) => {
      if (cell) cell.setAttribute("aria-sort", state.sort !== columns[index] ? "none" : state.down ? "descending" : "ascending")
    })
  }
  // The values of a choice that the other choices leave, each with the number of its claims.
  function fill(name) {
    const counts = new Map()
    let any = 0
    for (const claim of claims.filter(claim => matches(claim, name))) {
      any += claim.values[name].length > 0
      for (const value of claim.values[name]) counts.set(value, (counts.get(value) ?? 0) + 1)
    }
    if (state[name] && state[name] !== "any" && !counts.has(state[name])) counts.set(state[name], 0)
    const values = [...counts.keys()].sort(natural.compare)
    const options = [make("option", { value: "", textContent: "all" })]
    if (name === "cause" || name === "changed") options.push(make("option", { value: "any", textContent: `any (${any})` }))
    options.push(...values.map(value => make("option", { value, textContent: `${value} (${counts.get(value)})` })))
    inputs[name].replaceChildren(...options)
    inputs[name].value = state[name]
  }

  // The details of a claim, from a script that holds those of its page.
  let panel = null
  function closePanel() {
    panel?.remove()
    panel = null
    for (const button of body.querySelectorAll("[aria-expanded=true]")) button.setAttribute("aria-expanded", "false")
  }
  function close() {
    const claim = byId.get(state.claim)
    state.claim = ""
    write(false)
    closePanel()
    claim?.button.focus()
  }
  function open(focus) {
    closePanel()
    const claim = byId.get(state.claim)
    if (!claim) return
    if (claim.row.hidden || claim.row.classList.contains("later")) show()
    claim.button.setAttribute("aria-expanded", "true")
    const title = make("h3", { textContent: claim.keys.claim, tabIndex: -1 })
    const box = make("div", { className: "claim-details" }, title)
    box.setAttribute("role", "region")
    box.setAttribute("aria-label", `Details of the claim ${claim.id}`)
    panel = make("tr", { className: "claim-panel" }, make("td", { colSpan: columns.length }, box))
    panel.addEventListener("keydown", event => { if (event.key === "Escape") close() })
    claim.row.after(panel)
    if (focus) title.focus({ preventScroll: true })
    claim.row.scrollIntoView({ block: "start" })
    load(claim.page).then(
      details => { if (panel?.contains(box)) fillPanel(box, claim, details[claim.id]) },
      () => box.append(make("p", { textContent: "The details of this claim lie in a file that is missing." })),
    )
  }
  const loading = {}
  function load(page) {
    return loading[page] ??= new Promise((resolve, reject) => {
      const script = make("script", { src: `${root.dataset.details}${page}.js`, onerror: reject })
      script.onload = () => resolve(window.gradleakClaims[page])
      document.head.append(script)
    })
  }
  function fillPanel(box, claim, { facts, rows }) {
    const list = make("dl")
    for (const { head, text, link } of facts) {
      const value = link ? make("a", { href: link, textContent: text }) : text
      list.append(make("dt", { textContent: head }), make("dd", {}, value))
    }
    const anchor = make("a", { href: `#claim-${encodeURIComponent(claim.id)}`, textContent: `#claim-${claim.id}` })
    anchor.addEventListener("click", event => event.preventDefault())
    list.append(make("dt", { textContent: "Address" }), make("dd", {}, anchor))
    box.append(list)
    if (rows?.total) {
      const line = (tag, cells) => make("tr", {}, ...cells.map(cell => make(tag, { textContent: cell })))
      const shown = rows.rows.length < rows.total ? `the first ${rows.rows.length} of ${rows.total.toLocaleString("en")} rows` : `${rows.total} ${rows.total === 1 ? "row" : "rows"}`
      box.append(
        make("h4", { textContent: `Behind the measured value: ${shown} of the record` }),
        make("div", { className: "pst-scrollable-table-container" },
          make("table", { className: "claim-rows" },
            make("thead", {}, line("th", rows.columns)), make("tbody", {}, ...rows.rows.map(cells => line("td", cells))))),
      )
    }
    const button = make("button", { type: "button", textContent: "Close" })
    button.addEventListener("click", close)
    box.append(button)
  }

  addEventListener("hashchange", () => { read(); show(); open(true) })
  addEventListener("popstate", () => { read(); show(); open(false) })
  read()
  show()
  // The browser itself goes to the anchor while the page loads, and would take the focus away again.
  if (document.readyState === "complete") open(true)
  else addEventListener("load", () => setTimeout(() => open(true)))
})()
